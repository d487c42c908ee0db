"""One response under way: its turn in a thread, its events in a log, and what is kept of it at the end."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import CallBegun, CallDone, Finished, RoundDone, Step
from agent_tools.errors import AgentToolsError, ModelError
from agent_tools.gateway import store as tables
from agent_tools.gateway.event_log import EventLog, encoded, packed_events
from agent_tools.gateway.failures import ApiError, from_model, from_tool, stopped
from agent_tools.gateway.responses.body import fresh_body, listed_items
from agent_tools.gateway.responses.composer import Composer
from agent_tools.gateway.responses.items import Event
from agent_tools.gateway.responses.kept import keep
from agent_tools.gateway.responses.plan import Plan
from agent_tools.gateway.services import Services
from agent_tools.gateway.store import packed
from agent_tools.models.base import Usage
from agent_tools.models.wire import wire_messages

TERMINAL = ("response.completed", "response.incomplete", "response.failed")
_log = logging.getLogger(__name__)


class Run:
    """Made in the event loop; `work` is for a thread. `failure` says what went wrong, if anything did."""

    def __init__(self, services: Services, plan: Plan) -> None:
        self.plan = plan
        self.cancel = Cancel()
        self.is_stopped = False
        self.failure: ApiError | None = None
        self.log = EventLog(services.config.max_response_bytes)
        self.body = fresh_body(plan.request)
        self.on_end: Callable[[], None] = lambda: None
        self._services = services
        self._composer = Composer(self.body, plan.scene)
        self._conversation = list(plan.conversation)
        self._usage = Usage()
        self._spans = services.tracer.turn(plan.request.model)
        self._told: dict[str, str] = {}
        self._row = {"status": self.body["status"], "body": packed(self.body)}

    @property
    def id(self) -> str:
        """The response's id."""
        return str(self.body["id"])

    @property
    def last(self) -> dict[str, Any]:
        """The response's body at its end."""
        body: dict[str, Any] = json.loads(self._row["body"])
        return body

    def save_start(self) -> None:
        """Keep that it is under way, so that it can be asked for."""
        self._services.under_way.begin(self.id)
        self._add(None)

    def _add(self, container_id: str | None) -> None:
        row = {"id": self.id, "owner": self.plan.owner, "created_at": time.time(), **self._kept(container_id)}
        self._services.store.add(
            tables.responses, {**row, "input": packed(list(listed_items(self.plan.request.input)))}
        )

    def _kept(self, container_id: str | None) -> dict[str, Any]:
        """What is kept and changes, as it is now."""
        return {**self._row, "container_id": container_id, "conversation": packed(self._conversation)}

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
        self._row = {"status": body["status"], "body": packed(body)}
        if not request.store:
            return
        if request.background:
            is_kept = self._change(event, container_id)
            self._services.under_way.end(self.id)
        else:
            self._add(container_id)
            is_kept = True
        if is_kept:
            ids = {call_id: item.id for call_id, item in self._composer.code_items.items()}
            told = {ids[call_id]: text for call_id, text in self._told.items() if call_id in ids}
            keep(self._services.store, self.plan.owner, body, told)

    def _change(self, event: Event, container_id: str | None) -> bool:
        """Keep how it ended and all its events; False if it was deleted meanwhile."""
        store = self._services.store
        data = packed_events([*self.log.events, encoded(event)])
        store.add(tables.events, {"id": self.id, "created_at": time.time(), "data": data})
        is_there = store.change(tables.responses, self.id, **self._kept(container_id))
        if not is_there:
            store.delete(tables.events, id=self.id)
        return is_there


def _where(exc: BaseException) -> str:
    """The line an exception comes from: no values, which could be anyone's words."""
    traceback = exc.__traceback__
    while traceback and traceback.tb_next:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback else "?"
