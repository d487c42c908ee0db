"""One response as a job: its turn, its events, and what is stored of it at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from typing import Any

from agent_tools.agents.steps import CallDone, RoundDone, Step
from agent_tools.gateway import store as tables
from agent_tools.gateway.jobs.event_log import EventLog, encoded, packed_events
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.responses.body import fresh_body, listed_items
from agent_tools.gateway.responses.composer import Composer
from agent_tools.gateway.responses.items import Event
from agent_tools.gateway.responses.plan import Plan
from agent_tools.gateway.responses.stored_items import keep
from agent_tools.gateway.services import Services
from agent_tools.gateway.store import StoreError, packed, packed_lines
from agent_tools.gateway.turn_job import TurnJob
from agent_tools.models.base import Usage
from agent_tools.models.wire import wire_messages

NOT_KEPT = "The response could not be kept: the gateway's disk is nearly full, or its database does not answer."
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
_log = logging.getLogger(__name__)


class ResponseJob(TurnJob):
    """Made in a thread, with a log of the event loop. `body` is the response as it stands."""

    def __init__(self, services: Services, plan: Plan, log: EventLog) -> None:
        super().__init__(services, plan.request.model, log)
        self.plan = plan
        self.body = fresh_body(plan.request)
        self._composer = Composer(self.body, plan.scene)
        self._conversation = list(plan.conversation)
        self._usage = Usage()
        self._told: dict[str, str] = {}
        self._input_size = 0
        self._row = {"status": self.body["status"], "body": packed(self.body)}

    @property
    def id(self) -> str:
        """The response's id."""
        return str(self.body["id"])

    @property
    def answer(self) -> str:
        """The response's body as JSON: as it was at first, until it is over."""
        return str(self._row["body"])

    def events(self) -> Generator[Event, None, None]:
        """Make the response, event by event."""
        yield from self._composer.begin()
        messages = [*self.plan.instructions, *self._conversation]
        for step in self.steps(self.plan.turn, messages, [self.plan.tool] if self.plan.tool else []):
            self._note(step)
            yield from self._composer.feed(step)

    def failed(self, failure: ApiError) -> Iterator[Event]:
        """Yield the events of a response that cannot go on."""
        yield from self._composer.fail(failure, self._usage)

    def record(self, event: Mapping[str, Any]) -> None:
        """Append an event to the log; before the last one, let go of the container and keep the response."""
        if event["type"] in TERMINAL:
            self._end(event)
        super().record(event)

    def close(self) -> None:
        """Let go of the container, however the response ended."""
        if self.plan.tool:
            self.plan.tool.close()
        super().close()

    def save_start(self) -> None:
        """Keep that it is under way, so that it can be asked for."""
        self._services.under_way.begin(self.id)
        self._add(None)

    def _add(self, container_id: str | None, told: int = 0) -> None:
        request, lines = self.plan.request, packed_lines(listed_items(self.plan.request.input))
        self._input_size = len(lines)
        common = {"id": self.id, "owner": self.plan.owner, "created_at": time.time(), "background": request.background}
        row = {**common, **self._kept(container_id, told), "input": lines}
        self._services.store.add(tables.responses, row)

    def _kept(self, container_id: str | None, more: int) -> dict[str, Any]:
        """What is kept and changes, as it is now; `more` are the bytes that are kept beside it."""
        row = {**self._row, "conversation": packed(self._conversation)}
        size = self._input_size + len(row["body"]) + len(row["conversation"]) + more
        return {**row, "container_id": container_id, "bytes": size}

    def _note(self, step: Step) -> None:
        """Remember what the next response will need."""
        match step:
            case CallDone(call=call):
                self._told[call.id] = step.text
            case RoundDone(messages=messages, usage=usage):
                self._conversation += wire_messages(messages)
                self._usage += usage or Usage()

    def _end(self, event: Mapping[str, Any]) -> None:
        """Let go of the container and keep the response, before anyone hears of its end."""
        tool, request, body = self.plan.tool, self.plan.request, event["response"]
        container_id = tool.container_id if tool and tool.has_container else None
        if tool:
            tool.close()
        self._row.update(status=body["status"], body=packed(body))
        if request.store:
            try:
                self._keep(event, container_id)
            except (StoreError, ApiError) as exc:
                _log.error("a response could not be kept: %s", type(exc).__name__)
                self._tell_it_is_not_kept(body)
            if request.background:
                with suppress(StoreError):
                    self._services.under_way.end(self.id)

    def _keep(self, event: Mapping[str, Any], container_id: str | None) -> None:
        ids = {call_id: item.id for call_id, item in self._composer.code_items.items()}
        told = {ids[call_id]: text for call_id, text in self._told.items() if call_id in ids}
        size = sum(map(len, told.values()))
        self._services.shares.check_responses_disk()
        if not self.plan.request.background:
            self._add(container_id, size)
        elif not self._change(event, container_id, size):
            return
        keep(self._services.store, self.plan.owner, event["response"], told)

    def _tell_it_is_not_kept(self, body: dict[str, Any]) -> None:
        """Who waits for the answer gets it all the same, and reads in `store` that it is to be had only now."""
        body["store"] = False
        self._row["body"] = packed(body)
        if self.plan.request.background:
            error = {"code": "server_error", "message": NOT_KEPT}
            row = {"status": "failed", "body": packed({**body, "status": "failed", "error": error, "output": []})}
            with suppress(StoreError):  # where even this cannot be written, it will fail as those of lost gateways do
                self._services.store.change(tables.responses, self.id, **row)

    def _change(self, event: Mapping[str, Any], container_id: str | None, told: int) -> bool:
        """Keep how it ended and all its events; False if it was deleted meanwhile."""
        store = self._services.store
        data = packed_events([*self.log.events, encoded(event)])
        store.add(tables.events, {"id": self.id, "created_at": time.time(), "data": data})
        is_there = store.change(tables.responses, self.id, **self._kept(container_id, told + len(data)))
        if not is_there:
            store.delete(tables.events, id=self.id)
        return is_there
