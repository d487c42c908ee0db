"""The suite for sessions, as far as it is not about this machine, on sessions of a fleet."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from agent_tools.engines.engine import Engine, Isolation
from agent_tools.fleet import Fleet, SandboxHost
from agent_tools.fleet.local import LocalHosts
from agent_tools.fleet.remote_session import RemoteSession
from agent_tools.limits import Limits
from agent_tools.machine.removal import empty_folder
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.sandbox.kernels import SessionSpec
from agent_tools.runtime.transport.transport import TransportName
from tests.contract import test_session as suite
from tests.unit.fleet.conftest import PicklingLink

HELD = (
    "test_a_cancel_as_early_as_can_be_interrupts_and_kills_nothing",
    "test_a_death_between_runs_is_told_by_the_next",
    "test_a_long_print_is_cut_in_the_middle_with_an_exact_count",
    "test_a_message_over_the_limit_ends_the_kernel_with_a_reason",
    "test_a_second_run_while_reading_a_stream_is_refused_and_not_a_deadlock",
    "test_a_syntax_error_has_the_true_line",
    "test_a_time_out_keeps_variables",
    "test_an_exception_is_a_value_with_the_users_line",
    "test_an_interrupt_at_any_moment_costs_no_reply_and_no_variable",
    "test_cancelled_code_that_will_not_stop_is_not_called_too_slow",
    "test_close_in_mid_run_ends_the_run",
    "test_close_is_idempotent_and_final",
    "test_closing_a_stream_interrupts_the_code_and_keeps_variables",
    "test_code_that_will_not_stop_loses_its_kernel_and_says_so",
    "test_displays_are_updated_and_cleared",
    "test_displays_stay_between_the_text_before_and_after_them",
    "test_half_a_character_is_shown_as_its_escape",
    "test_interrupt_stops_the_code_and_keeps_variables",
    "test_interrupt_with_nothing_running_is_harmless",
    "test_no_output_is_lost",
    "test_outputs_come_as_values_in_order",
    "test_outputs_stream_while_the_code_runs",
    "test_restart_forgets_variables_and_keeps_files",
    "test_running_code_is_ended_and_told_that_its_variables_are_gone",
    "test_runs_of_many_threads_are_served_in_turn_and_never_mixed",
    "test_text_printed_between_two_runs_is_a_note_of_the_second_and_not_its_stdout",
    "test_the_kernels_death_is_told_at_once",
    "test_variables_live_from_run_to_run",
    "test_waiting_for_ones_turn_is_visible_and_costs_no_time_limit",
    "test_what_is_refused_while_a_stream_is_read_changes_nothing",
)
"""The tests of the suite that hold here, too."""
globals().update({name: getattr(suite, name) for name in HELD})

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module", params=["sockets"])
def transport(request: pytest.FixtureRequest) -> TransportName:
    """One is enough: what lies below a host is tried by its own suite."""
    name: TransportName = request.param
    return name


@pytest.fixture(scope="module")
def fleet(engine: Engine, tag: str) -> Iterator[Fleet]:
    """A host whose messages are pickled, with the engine below it."""
    host = SandboxHost(Runtime(engine, lambda recipe: tag), 64)
    fleet = Fleet(LocalHosts(PicklingLink("host", host)))
    yield fleet
    fleet.disconnect()


def opened(fleet: Fleet, tag: str, work_dir: Path, **limits: float) -> RemoteSession:
    bounds = Limits(**limits)  # type: ignore[arg-type]
    return fleet.open(uuid.uuid4().hex, SessionSpec(tag, work_dir, Isolation(), bounds))


@pytest.fixture
def new_session(fleet: Fleet, tag: str, work_dir: Path) -> Iterator[Callable[..., RemoteSession]]:
    sessions: list[RemoteSession] = []

    def make(**limits: float) -> RemoteSession:
        sessions.append(opened(fleet, tag, work_dir, **limits))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


@pytest.fixture
def own_session(new_session: Callable[..., RemoteSession]) -> RemoteSession:
    return new_session()


@pytest.fixture(scope="module")
def used_sessions(fleet: Fleet, tag: str) -> Iterator[Callable[..., RemoteSession]]:
    """As those of the suite: sessions that tests have one after another, by their limits."""
    with ExitStack() as stack:
        made: dict[frozenset[tuple[str, float]], RemoteSession] = {}

        def hand_over(**limits: float) -> RemoteSession:
            key = frozenset(limits.items())
            if key not in made:
                path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-tools-test-")))
                made[key] = stack.enter_context(closing(opened(fleet, tag, path, **limits)))
            made[key].restart()
            empty_folder(made[key].spec.work_dir)
            return made[key]

        yield hand_over


@pytest.fixture
def session(used_sessions: Callable[..., RemoteSession]) -> RemoteSession:
    return used_sessions()


@pytest.fixture(scope="module")
def shared_session(fleet: Fleet, tag: str) -> Iterator[RemoteSession]:
    path = Path(tempfile.mkdtemp(prefix="agent-tools-test-"))
    with closing(opened(fleet, tag, path)) as session:
        session.run("0", 30)
        yield session
    shutil.rmtree(path, ignore_errors=True)
