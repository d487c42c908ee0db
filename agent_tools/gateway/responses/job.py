"""One response as a job: its turn, its events, and its end, which is stored."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from agent_tools.agents.steps import CallDone, Finished, RoundDone, Step
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.gateway.conversations.stored import Hidden
from agent_tools.gateway.jobs.event_log import EventLog, encoded
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.responses.body import fresh_body
from agent_tools.gateway.responses.compaction.compactor import Compactor, compaction_item, summary_message, too_long
from agent_tools.gateway.responses.composer import Composer
from agent_tools.gateway.responses.history import answered
from agent_tools.gateway.responses.items import Event, Item
from agent_tools.gateway.responses.plan import Plan
from agent_tools.gateway.responses.remote_tools import RemoteTools
from agent_tools.gateway.responses.storage import Outcome, ResponseStorage, Snapshot
from agent_tools.gateway.responses.stored_items import note_recent
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.records import ResponseEnd, StoredConversation
from agent_tools.gateway.store.store import StoreError, packed
from agent_tools.gateway.turn_job import TurnJob
from agent_tools.messages import SERVER_FIELDS
from agent_tools.models.base import Conversation, JsonObject, Usage
from agent_tools.models.wire import wire_messages

_log = logging.getLogger(__name__)
_CALLS = (
    "function_call",
    "shell_call",
    "apply_patch_call",
)  # which the conversation could not go on from if they were cut off
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


class ResponseJob(TurnJob):
    """A response; made in a thread, with a log of the event loop.

    Attributes:
        plan: the request and all that its turn needs.
        body: the response as it stands.
        answer: the response's body as JSON: as it was at first, until it has ended.
    """

    def __init__(self, services: Services, plan: Plan, log: EventLog) -> None:
        super().__init__(services, plan.owner, plan.request.model, log, is_urgent=plan.hold is None)
        self.plan = plan
        self.body = fresh_body(plan.request)
        self.answer = packed(self.body)
        self._composer = Composer(self.body, plan.context)
        self._conversation = list(plan.conversation)
        self._usage = Usage()
        self._compactor = Compactor(plan.turn.model, services.config.turn_timeout)
        self._told: dict[str, str] = {}
        self._server_fields: dict[str, str] = {}  # as JSON, by the ids of items
        self._items_of_rounds = 0  # items of the rounds that are over
        self._container_id: str | None = None
        self._storage = ResponseStorage(services, plan, self.id)
        self._remote = RemoteTools(services.config, services.mcp_reach, plan.decisions)

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
        with self.cancel.ending(self._remote.cancel):
            turn = yield from self._with_remote_tools()
            yield from self._compact()
            messages = answered([*self.plan.instructions, *self._conversation])
            yield from self._events_of(turn, messages)

    def _with_remote_tools(self) -> Generator[Event, None, ToolLoop]:
        """List the tools of MCP servers and make the calls that were approved; return the turn with these tools."""
        plan = self.plan
        if not (plan.decisions or plan.request.tools.remote):
            return plan.turn
        with self._services.baton.put_down():
            yield from self._remote.listed(plan.request.tools.remote, plan.turn, self._composer)
            yield from self._remote.settled(self._conversation, self._composer)
        return self._remote.turn(plan.turn)

    def _compact(self) -> Iterator[Event]:
        """Put a summary in place of what was said before, if that is longer than the client allows."""
        long = too_long(self._conversation, self.plan.request.compact_threshold)
        if long is None:
            return
        messages, note = (
            [*self.plan.instructions, *long.before],
            partial(self._services.metrics.step, key=self._key_name),
        )
        summary = self._compactor.summarised(messages, self.cancel, note)
        self._usage += self._compactor.usage
        if summary:
            item = Item(compaction_item(summary, long.newest_text))
            yield from self._composer.insert(item)
            yield from self._composer.placed(item, item.done())
            self._conversation = [summary_message(summary), *long.newest]

    def _events_of(self, turn: ToolLoop, messages: Conversation) -> Iterator[Event]:
        for step in self.steps(turn, messages, self.plan.tools):
            self._note(step)
            if isinstance(step, Finished):
                step = replace(step, usage=step.usage + self._compactor.usage)
            yield from self._composer.feed(step)

    def failed(self, failure: ApiError) -> Iterator[Event]:
        """Yield the events of a response that cannot go on."""
        yield from self._composer.fail(failure, self._usage)

    def record(self, event: Mapping[str, Any]) -> None:
        """Append an event to the log; before the last one, let go of the container and store the response."""
        if event["type"] in TERMINAL:
            try:
                self._end(event)
            except Exception as exc:  # noqa: BLE001  (no stream ends without its last event, whatever this is)
                _log.error("the end of a response could not be kept: %s", type(exc).__name__)
                self._storage.close()
                self._not_stored(event["response"])
        super().record(event)

    def close(self) -> None:
        """Let go of the container and hang up on servers, however the response ended, and whatever fails meanwhile."""
        with ExitStack() as undo:
            undo.callback(self._storage.close)
            undo.callback(super().close)
            undo.callback(self._remote.close)
            if self.plan.hold:
                undo.callback(self.plan.hold.close)
            undo.callback(self._remote.cancel)  # code in the container may wait for one of them

    def end(self) -> ResponseEnd:
        """Return what the next response builds on, once this one has ended."""
        conversation, earlier = packed(self._conversation), self._container_id or self.plan.earlier
        return ResponseEnd(id=self.id, status=self.body["status"], container_id=earlier, conversation=conversation)

    def save_start(self) -> None:
        """Store that the response is under way, so that it can be asked for."""
        self._storage.begin(Snapshot(self.body["status"], self.answer, self._conversation, self.plan.earlier))

    def _note(self, step: Step) -> None:
        """Remember what the next response will need."""
        match step:
            case CallDone(call=call):
                self._told[call.id] = step.text
            case RoundDone(messages=messages, usage=usage):
                told = [*map(self._with_model, wire_messages(messages))]
                self._note_server_fields(told)
                self._conversation += told
                self._usage += usage or Usage()

    def _note_server_fields(self, messages: Sequence[JsonObject]) -> None:
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
        """Have fields that only the model's server knows stored with its name: no other one gets them."""
        fields = message.get(SERVER_FIELDS)
        return {**message, SERVER_FIELDS: {**fields, "model": self.plan.request.model}} if fields else message

    def _end(self, event: Mapping[str, Any]) -> None:
        """Let go of the container and store the response, before anyone hears of its end."""
        hold, request, body = self.plan.hold, self.plan.request, event["response"]
        self._container_id = container_id = hold.container_id if hold and hold.has_container else None
        if hold:
            hold.close()
        if self.plan.known:
            self._services.conversations.note(self.plan.known, body["output"], container_id or "")
        hidden = Hidden(self._told_by_item(), self._server_fields)
        if self.plan.stored and body["status"] in ("completed", "incomplete"):
            self._add_to_conversation(self.plan.stored, body, hidden, container_id)
        self.answer = packed(body)
        if not request.store:
            note_recent(self._services.recent_fields, self.plan.owner, body, hidden)
            return
        snapshot = Snapshot(body["status"], self.answer, self._conversation, container_id or self.plan.earlier)
        if not self._storage.end(Outcome(body, snapshot, hidden, [*self.log.events, encoded(event)])):
            self._not_stored(body)

    def _add_to_conversation(
        self, stored: StoredConversation, body: JsonObject, hidden: Hidden, container_id: str | None
    ) -> None:
        """Add input and output to the conversation; a response that could not be added names none."""
        answer = [item for item in body["output"] if item["type"] not in _CALLS or item.get("status") != "incomplete"]
        try:
            items = [*self.plan.request.input, *answer]
            self._services.stored_conversations.append(stored, items, hidden, container_id)
        except (StoreError, ApiError) as exc:
            _log.error("a response could not be added to its conversation: %s", type(exc).__name__)
            body["conversation"] = None

    def _not_stored(self, body: JsonObject) -> None:
        """Have the client read that its answer, which it gets all the same, is not stored."""
        body["store"] = False
        self.answer = packed(body)

    def _told_by_item(self) -> dict[str, str]:
        """Return what the model was told of each call, by the ids of the calls' items."""
        answered = {**self._composer.code_items, **self._composer.shell_outputs}
        ids = {call_id: item.id for call_id, item in answered.items()}
        return {ids[call_id]: text for call_id, text in self._told.items() if call_id in ids}
