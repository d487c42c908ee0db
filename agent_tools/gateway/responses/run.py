"""One response under way: its turn in a thread, its events in a log, and what is kept of it at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import CallBegun, CallDone, Finished, RoundDone, Step
from agent_tools.errors import AgentToolsError, ModelError
from agent_tools.gateway import store as tables
from agent_tools.gateway.jobs.event_log import EventLog, encoded, packed_events
from agent_tools.gateway.requests.failures import ApiError, from_model, from_tool, stopped
from agent_tools.gateway.responses.body import fresh_body, listed_items
from agent_tools.gateway.responses.composer import Composer
from agent_tools.gateway.responses.items import Event
from agent_tools.gateway.responses.plan import Plan
from agent_tools.gateway.responses.stored_items import keep
from agent_tools.gateway.services import Services
from agent_tools.gateway.store import StoreError, packed, packed_lines
from agent_tools.models.base import Usage
from agent_tools.models.wire import wire_messages

NOT_KEPT = "The response could not be kept: the gateway's disk is nearly full, or its database does not answer."
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
_log = logging.getLogger(__name__)


class Run:
    """For a thread, as is `work`. `failure` says what went wrong, if anything did."""

    def __init__(self, services: Services, plan: Plan, log: EventLog) -> None:
        self.plan = plan
        self.cancel = Cancel()
        self.is_stopped = False
        self.failure: ApiError | None = None
        self.log = log
        self.body = fresh_body(plan.request)
        self.on_end: Callable[[], None] = lambda: None
        self._services = services
        self._composer = Composer(self.body, plan.scene)
        self._conversation = list(plan.conversation)
        self._usage = Usage()
        self._spans = services.tracer.turn(plan.request.model)
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

    def work(self) -> None:
        """Make the response, to its end, whatever happens."""
        try:
            for event in self._events():
                if event["type"] in TERMINAL:
                    self._end(event)
                self.log.append(event)
        finally:
            if self.plan.tool:
                self.plan.tool.close()
            self._spans.end()
            self.on_end()
            self.log.close()

    def _events(self) -> Iterator[Event]:
        try:
            yield from self._composer.begin()
            with closing(self.plan.turn.run([*self.plan.instructions, *self._conversation], self.cancel)) as steps:
                for step in steps:
                    if isinstance(step, Finished) and step.reason == "cancelled" and self.is_stopped:
                        raise stopped()
                    self._note(step)
                    yield from self._composer.feed(step)
                    if isinstance(step, CallDone) and (failure := from_tool(step.failure)):
                        raise failure
                    if self.log.is_full:
                        raise ApiError(500, "The response became larger than it may.", code="response_too_large")
        except ModelError as exc:
            yield from self._fail(from_model(exc, is_clients_key=self._services.upstream.passes_key()))
        except ApiError as exc:
            yield from self._fail(exc)
        except AgentToolsError as exc:
            _log.error("a response failed: %s", type(exc).__name__)
            yield from self._fail(ApiError(500, "The code interpreter failed.", code="code_interpreter_error"))
        except Exception as exc:  # noqa: BLE001  (the outermost loop of a door)
            _log.error("a response failed: %s in %s", type(exc).__name__, _where(exc))
            yield from self._fail(ApiError(500, "The gateway failed.", code="internal_error"))

    def _fail(self, failure: ApiError) -> Iterator[Event]:
        self.failure = failure
        yield from self._composer.fail(failure, self._usage)

    def _note(self, step: Step) -> None:
        """Remember what the next response will need."""
        self._services.metrics.step(step)
        self._spans.step(step)
        match step:
            case CallBegun(name=name) if self.plan.tool and name == self.plan.tool.name:
                self.plan.tool.warm_up()
            case CallDone(call=call):
                self._told[call.id] = step.text
            case RoundDone(messages=messages, usage=usage):
                self._conversation += wire_messages(messages)
                self._usage += usage or Usage()

    def _end(self, event: Event) -> None:
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

    def _keep(self, event: Event, container_id: str | None) -> None:
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

    def _change(self, event: Event, container_id: str | None, told: int) -> bool:
        """Keep how it ended and all its events; False if it was deleted meanwhile."""
        store = self._services.store
        data = packed_events([*self.log.events, encoded(event)])
        store.add(tables.events, {"id": self.id, "created_at": time.time(), "data": data})
        is_there = store.change(tables.responses, self.id, **self._kept(container_id, told + len(data)))
        if not is_there:
            store.delete(tables.events, id=self.id)
        return is_there


def _where(exc: BaseException) -> str:
    """The line an exception comes from: no values, which could be anyone's words."""
    traceback = exc.__traceback__
    while traceback and traceback.tb_next:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback else "?"
