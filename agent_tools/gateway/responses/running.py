"""Starting a response as a job, and finding one that runs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive

from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.jobs.jobs import Jobs
from agent_tools.gateway.jobs.sse import while_there
from agent_tools.gateway.responses.job import ResponseJob
from agent_tools.gateway.responses.plan import Planner
from agent_tools.gateway.responses.request import Request, read_request
from agent_tools.gateway.services import Services
from agent_tools.models.base import JsonObject


def request_reader(services: Services) -> Callable[[JsonObject], Request]:
    """Return the reader of requests, which knows what this gateway takes."""
    config = services.config
    unknown, reach = config.unknown_tools, services.mcp_reach
    return partial(read_request, unknown_tools=unknown, passed=config.passed_fields, reach=reach)


@dataclass(frozen=True)
class Submission:
    """A request for a response, with its sender, whose hanging up `receive` tells.

    It `may_forward` if another gateway may answer it.
    """

    request: Request
    owner: str
    headers: Mapping[str, str]
    receive: Receive
    may_forward: bool = False


async def start_job(services: Services, jobs: Jobs, submission: Submission) -> ResponseJob:
    """Start a response.

    Raises:
        ApiError: it cannot be made, or not now; 499, the client has hung up.
        Elsewhere: it is for another gateway.
    """
    request, owner = submission.request, submission.owner
    session = services.conversations.session(submission.headers)
    look = services.peers.look_for_holder if submission.may_forward else None
    new_planner = partial(Planner, services, owner, request, session, look)
    if look and services.peers.are_there:  # before a place is taken: who is sent on needs none here
        await run_in_threadpool(new_planner().look)
    planner = new_planner()
    place = await while_there(jobs.enter(owner, needs_sandbox=planner.needs_sandbox), submission.receive)
    try:
        log = EventLog(services.config.max_response_bytes)
        job = await run_in_threadpool(_made, planner, services.upstream.key(submission.headers), log)
    except BaseException:
        jobs.leave(place)
        raise
    jobs.follow(job, place)
    return job


def _made(planner: Planner, upstream_key: str, log: EventLog) -> ResponseJob:
    """Plan a response, and store its start if it is made in the background. For a thread."""
    with planner.services.baton.held(is_urgent=not planner.needs_sandbox):
        try:
            plan = planner.plan(upstream_key)
            job = ResponseJob(planner.services, plan, log)
            if plan.request.background:
                job.save_start()
        except BaseException:
            planner.undo()
            raise
        return job


def find_job(jobs: Jobs, id_: str, owner: str) -> ResponseJob | None:
    """Return the response of this owner that runs here, if it does."""
    return next((job for job in jobs.all_of(ResponseJob) if job.id == id_ and job.plan.owner == owner), None)
