"""A response as a job: it runs the turn, yields events and stores the end. `start_job` makes it from a request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.types import Receive

from agent_tools.agents.steps import CallDone, Finished, RoundDone, Step
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.containers.failures import RowsAway
from agent_tools.gateway.conversations.stored import ServerOnlyFields
from agent_tools.gateway.event_log import EventLog, encoded
from agent_tools.gateway.http import jobs_of, owner_of, services_of
from agent_tools.gateway.jobs import Jobs
from agent_tools.gateway.requests.api_errors import ApiError, no_summary
from agent_tools.gateway.responses import plan as planning
from agent_tools.gateway.responses.compaction import summarised
from agent_tools.gateway.responses.composer import Composer
from agent_tools.gateway.responses.history import answered
from agent_tools.gateway.responses.items import CompactionItem, Event
from agent_tools.gateway.responses.plan import Plan
from agent_tools.gateway.responses.remote_tools import RemoteTools
from agent_tools.gateway.responses.request import ResponseRequest, fresh_body, read_request
from agent_tools.gateway.responses.storage import ResponseStorage
from agent_tools.gateway.responses.stored_items import record_recent
from agent_tools.gateway.responses.summary_item import compaction_item, split, summary_message, text_of_messages
from agent_tools.gateway.responses.token_count import estimate
from agent_tools.gateway.services import Services
from agent_tools.gateway.sse import while_there
from agent_tools.gateway.store.records import ResponseEnd, StoredConversation
from agent_tools.gateway.store.store import packed
from agent_tools.gateway.turn_job import TurnJob
from agent_tools.messages import SERVER_FIELDS
from agent_tools.models.base import Conversation, JsonObject, Usage
from agent_tools.models.wire import wire_messages

_log = logging.getLogger(__name__)
_CALLS = ("function_call", "shell_call", "apply_patch_call", "tool_search_call")
"""Items that a conversation could not go on from if they were cut off."""
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


class ResponseJob(TurnJob):
    """A response; made in a thread, with a log of the event loop.

    Attributes:
        plan: the request, and everything for its turn.
        body: the current response.
        answer: the response's body as JSON: as it was at first, until it has ended.
    """

    def __init__(self, services: Services, plan: Plan, log: EventLog) -> None:
        super().__init__(services, plan.owner, plan.request.model, plan.upstream_key, log, is_urgent=plan.lease is None)
        self.plan = plan
        self.body = fresh_body(plan.request)
        self.answer = packed(self.body)
        self._composer = Composer(self.body, plan.request, plan.context)
        self._conversation = list(plan.conversation)
        self._usage = Usage()
        self._summary_usage = Usage()
        self._answers: dict[str, str] = {}  # for the model, by the ids of calls
        self._server_fields: dict[str, str] = {}  # as JSON, by the ids of items
        self._items_of_rounds = 0  # items of the rounds that are over
        self._ends_at = time.monotonic() + services.config.turn_timeout
        self._container_id: str | None = None
        self._storage = ResponseStorage(services, plan.request, plan.owner, self.id) if plan.request.store else None
        names_servers = bool(plan.decisions or plan.request.tools.remote)
        self._remote = RemoteTools(services.config, services.mcp_servers, plan.decisions) if names_servers else None

    @property
    def id(self) -> str:
        """The response's id."""
        return str(self.body["id"])

    def events(self) -> Generator[Event, None, None]:
        """Make the response, event by event."""
        yield from self._composer.begin()
        if not self.plan.request.generates:
            yield from self._composer.feed(Finished("stop", Usage()))
            return
        if self.plan.request.compacts:
            yield from self._sum_up()
            return
        turn = self.plan.turn
        with ExitStack() as ending:
            if self._remote:
                ending.enter_context(self.cancel.ending(self._remote.cancel))
                ending.enter_context(self._timed(self._remote.cancel))
                turn = yield from self._with_remote_tools(self._remote)
            if self.plan.request.compact_threshold is not None:
                yield from self._compact(self.plan.request.compact_threshold)
            messages = answered([*self.plan.instructions, *self._conversation])
            yield from self._events_of(replace(turn, deadline=self._seconds_left), messages)

    @property
    def _seconds_left(self) -> float:
        """The seconds that are left of the response's time limit."""
        return max(0.0, self._ends_at - time.monotonic())

    @contextmanager
    def _timed(self, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` at the response's time limit while this context is open."""
        timer = threading.Timer(self._seconds_left, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _with_remote_tools(self, remote: RemoteTools) -> Generator[Event, None, ToolLoop]:
        """List the tools of MCP servers and make the calls that were approved; return the turn with these tools."""
        turn = self.plan.turn
        with self._services.compute.waiting():
            yield from remote.listed(self.plan.request.tools.remote, turn, self._composer)
            yield from remote.settled(self._conversation, self._composer)
        return remote.turn(turn)

    def _compact(self, threshold: int) -> Iterator[Event]:
        """Replace the earlier conversation by a summary, if it has more tokens than the client allows, by estimate."""
        if estimate(self._conversation, ()) <= threshold:
            return
        before, newest = split(self._conversation)
        if before and (summary := self._summary(before)):
            item = CompactionItem(compaction_item(summary, text_of_messages(newest))["encrypted_content"])
            yield from self._composer.insert(item)
            yield from self._composer.placed(item, item.done())
            self._conversation = [summary_message(summary), *newest]

    def _sum_up(self) -> Iterator[Event]:
        """Make a response whose only item is a summary, as the request's last item asks for it."""
        item = CompactionItem()
        yield from self._composer.insert(item)
        yield from self._composer.placed(item, item.begun())
        summary = self._summary(self._conversation)
        if not summary and self.cancel.is_set() and not self.is_stopped:
            yield from self._composer.feed(Finished("cancelled", self._summary_usage))
            return
        if not summary:
            raise no_summary()
        item.value["encrypted_content"] = compaction_item(summary)["encrypted_content"]
        yield from self._composer.placed(item, item.done())
        self._conversation = [summary_message(summary)]
        yield from self._composer.feed(Finished("stop", self._summary_usage))

    def _summary(self, messages: Sequence[JsonObject]) -> str:
        """Return the model's summary of messages, and count its tokens; '' if it wrote none, or was interrupted."""
        turn = ToolLoop(self.plan.turn.model, deadline=self._seconds_left)
        said = answered([*self.plan.instructions, *messages])
        summary, self._summary_usage = summarised(turn, said, self.cancel, self._count)
        self._usage += self._summary_usage
        return summary

    def _events_of(self, turn: ToolLoop, messages: Conversation) -> Iterator[Event]:
        for step in self.steps(turn, messages, self.plan.tools):
            self._record(step)
            if isinstance(step, Finished):
                step = replace(step, usage=step.usage + self._summary_usage)
            yield from self._composer.feed(step)

    def failed(self, failure: ApiError) -> Iterator[Event]:
        """Yield the events of a response that cannot go on."""
        yield from self._composer.fail(failure, self._usage)

    def record(self, event: Mapping[str, Any]) -> None:
        """Append an event to the log; before the last one, release the container and store the response."""
        if event["type"] in TERMINAL:
            try:
                self._end(event)
            except Exception as exc:  # noqa: BLE001  (no stream ends without its last event)
                _log.error("the end of a response could not be kept: %s", type(exc).__name__)
                self._drop_unstored()
                self._not_stored(event["response"])
        super().record(event)

    def close(self) -> None:
        """Release the container and hang up on servers, even if one of these steps fails."""
        with ExitStack() as undo:
            undo.callback(self._drop_unstored)
            undo.callback(super().close)
            if self._remote:
                undo.callback(self._remote.close)
            if self.plan.lease:
                undo.callback(self.plan.lease.close)
            if self._remote:
                undo.callback(self._remote.cancel)  # code in the container may wait for one of them

    def _drop_unstored(self) -> None:
        if self._storage:
            self._storage.close()

    def end(self) -> ResponseEnd:
        """Return the state for the next response."""
        return ResponseEnd(
            id=self.id,
            status=self.body["status"],
            container_id=self._container_id or self.plan.found.earlier,
            conversation=packed(self._conversation),
            tools=packed(self.plan.request.brought),
        )

    def save_start(self) -> None:
        """Store the started response, so that clients can retrieve it."""
        assert self._storage  # the request is checked for it
        self._storage.begin(self.end(), self.answer)

    def _record(self, step: Step) -> None:
        """Store facts for the next response."""
        match step:
            case CallDone(call=call):
                self._answers[call.id] = step.text
            case RoundDone(messages=messages, usage=usage):
                added = [*map(self._with_model, wire_messages(messages))]
                self._record_server_fields(added)
                self._conversation += added
                self._usage += usage or Usage()

    def _record_server_fields(self, messages: Sequence[JsonObject]) -> None:
        """Note fields of the model's server with the items of a round: those of the message with the first item."""
        items = self.body["output"][self._items_of_rounds :]
        self._items_of_rounds = len(self.body["output"])
        for fields in filter(None, (message.get(SERVER_FIELDS) for message in messages)):
            found: dict[str, JsonObject] = {}
            if fields.get("message") and items:
                found[items[0]["id"]] = {"message": fields["message"]}
            for call_id, of_call in fields.get("calls", {}).items():
                if item := self._composer.item_of(call_id):
                    found.setdefault(item.id, {})["call"] = of_call
            self._server_fields |= {id_: packed({**each, "model": fields["model"]}) for id_, each in found.items()}

    def _with_model(self, message: JsonObject) -> JsonObject:
        """Add the model's name to the fields of its server: no other server gets them."""
        fields = message.get(SERVER_FIELDS)
        return {**message, SERVER_FIELDS: {**fields, "model": self.plan.request.model}} if fields else message

    def _end(self, event: Mapping[str, Any]) -> None:
        """Release the container and store the response, before clients get its end."""
        lease, found, body = self.plan.lease, self.plan.found, event["response"]
        self._container_id = container_id = lease.container_id if lease and lease.has_container else None
        if lease:
            lease.close()
        if self._storage and self._storage.has_failed():  # a client may have asked again, so nothing remembers this
            self._not_stored(body)
            return
        if found.recognised:
            self._services.conversations.record(found.recognised, body["output"], container_id or "")
        hidden = ServerOnlyFields(self._answers_by_item(), self._server_fields)
        if found.stored and body["status"] in ("completed", "incomplete"):
            self._add_to_conversation(found.stored, body, hidden, container_id)
        self.answer = packed(body)
        if self._storage:
            events = [*self.log.events, encoded(event)] if self.plan.request.background else []
            if not self._storage.end(body, self.end(), self.answer, hidden, events):
                self._not_stored(body)
        else:
            record_recent(self._services.recent_fields, self.plan.owner, body, hidden)

    def _add_to_conversation(
        self, stored: StoredConversation, body: JsonObject, hidden: ServerOnlyFields, container_id: str | None
    ) -> None:
        """Add input and output to the conversation; a response that could not be added names none."""
        answer = [item for item in body["output"] if item["type"] not in _CALLS or item.get("status") != "incomplete"]
        try:
            items = [*self.plan.request.input, *answer]
            self._services.stored_conversations.append(stored, items, hidden, container_id)
        except (RowsAway, ApiError) as exc:
            _log.error("a response could not be added to its conversation: %s", type(exc).__name__)
            body["conversation"] = None

    def _not_stored(self, body: JsonObject) -> None:
        """Mark the answer, which the client still gets, as not stored."""
        body["store"] = False
        self.answer = packed(body)

    def _answers_by_item(self) -> dict[str, str]:
        """Return the answers that the model got, by the ids of the items that hold them."""
        found = {id_: self._composer.answered_by(id_) for id_ in self._answers}
        return {item.id: self._answers[id_] for id_, item in found.items() if item}


def request_reader(services: Services) -> Callable[[JsonObject], ResponseRequest]:
    """Return the reader of requests for this gateway's settings."""
    config = services.config
    unknown, servers = config.unknown_tools, services.mcp_servers
    return partial(read_request, unknown_tools=unknown, passed=config.passed_fields, servers=servers)


async def start_job(sender: HTTPConnection, receive: Receive, request: ResponseRequest) -> ResponseJob:
    """Start a response for a sender; `receive` waits until it hangs up.

    Raises:
        ApiError: it cannot be made, or not now; 499, the client has hung up.
    """
    services, jobs, owner = services_of(sender), jobs_of(sender), owner_of(sender)
    session, key = services.conversations.session(sender.headers), services.upstream.key(sender.headers)
    needs_sandbox = request.tools.container is not None
    slot = await while_there(jobs.enter(owner, needs_sandbox=needs_sandbox), receive)
    try:
        log = EventLog(services.config.max_response_bytes)
        job = await run_in_threadpool(_made, services, owner, request, session, key, log)
    except BaseException:
        jobs.leave(slot)
        raise
    jobs.follow(job, slot)
    return job


def _made(
    services: Services, owner: str, request: ResponseRequest, session: str, upstream_key: str, log: EventLog
) -> ResponseJob:
    """Plan a response, and store its start if it is made in the background. For a thread."""
    with services.compute.computing(is_urgent=request.tools.container is None):
        request = planning.check_request(services, owner, request)
        found = planning.find(services, owner, request, session)
        chosen = planning.choose(services, found)
        try:
            job = ResponseJob(services, planning.plan(services, found, chosen, upstream_key), log)
            if request.background:
                job.save_start()
        except BaseException:
            planning.discard(services, owner, chosen.lease)
            raise
        return job


def find_job(jobs: Jobs, id_: str, owner: str) -> ResponseJob | None:
    """Return the response of this owner that runs here, if it does."""
    return next((job for job in jobs.all_of(ResponseJob) if job.id == id_ and job.plan.owner == owner), None)
