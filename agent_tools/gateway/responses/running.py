"""Starting a response as a job, and finding one that runs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.jobs.jobs import Jobs
from agent_tools.gateway.responses.job import ResponseJob
from agent_tools.gateway.responses.plan import Planner
from agent_tools.gateway.responses.request import Request
from agent_tools.gateway.services import Services


@dataclass(frozen=True)
class Submission:
    """A request for a response, with its sender. It `may_forward` if another gateway may answer it."""

    request: Request
    owner: str
    headers: Mapping[str, str]
    may_forward: bool = False


async def start_job(services: Services, jobs: Jobs, submission: Submission) -> ResponseJob:
    """Start a response.

    Raises:
        ApiError: it cannot be made, or not now.
        Elsewhere: it is for another gateway.
    """
    place = await jobs.enter(submission.owner, needs_sandbox=submission.request.tools.container is not None)
    try:
        session = services.conversations.session(submission.headers)
        look = services.peers.look_for_holder if submission.may_forward else None
        planner = Planner(services, submission.owner, submission.request, session, look)
        plan = await run_in_threadpool(planner.plan, services.upstream.key(submission.headers))
        job = await run_in_threadpool(ResponseJob, services, plan, EventLog(services.config.max_response_bytes))
        if submission.request.background:
            await run_in_threadpool(job.save_start)
    except BaseException:
        jobs.leave(place)
        raise
    jobs.follow(job, place)
    return job


def find_job(jobs: Jobs, id_: str, owner: str) -> ResponseJob | None:
    """Return the response of this owner that runs here, if it does."""
    return next((job for job in jobs.all_of(ResponseJob) if job.id == id_ and job.plan.owner == owner), None)
