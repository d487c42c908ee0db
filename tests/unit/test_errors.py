import pickle
import re

import pytest

from agent_tools import errors
from agent_tools.errors import (
    AgentToolsError,
    ImageBuildError,
    InvalidParams,
    KernelDied,
    SandboxStartError,
    ToolServiceError,
)


def drawn_tree() -> list[tuple[str, str]]:
    """(class, base) for every line of the tree in the module's docstring."""
    path: list[str] = []
    pairs = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"^([│ ├└─]*)([A-Z]\w+)(?:  .*)?$", line):
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            pairs.append((found[2], path[depth - 1] if depth else "Exception"))
    return pairs


def test_every_class_has_the_base_that_is_drawn() -> None:
    drawn = drawn_tree()
    assert [(name, parent.__name__) for name, _ in drawn for parent in getattr(errors, name).__bases__] == drawn


def test_every_class_is_drawn() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert {name for name, _ in drawn_tree()} == defined


def test_tool_service_error_keeps_what_it_is_given() -> None:
    cause = OSError("disk full")
    error = ToolServiceError(exception=cause, code="C", message="do this", extra={"k": 1})
    assert (error.exception, error.code, error.message, error.extra) == (cause, "C", "do this", {"k": 1})


def test_tool_service_error_takes_its_arguments_by_position() -> None:
    error = ToolServiceError(None, "C", "m", {"k": 1})
    assert (error.exception, error.code, error.message, error.extra) == (None, "C", "m", {"k": 1})


def test_tool_service_error_reads_as_the_failure_underneath() -> None:
    error = ToolServiceError(OSError("disk full"))
    assert str(error) == "disk full"
    assert error.message == "disk full"


def test_tool_service_error_reads_as_its_code_and_message() -> None:
    assert str(ToolServiceError(code="C", message="m")) == "\nError code: C. Error message: m"


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ToolServiceError(), id="nothing given"),
        pytest.param(ToolServiceError(code="C"), id="only a code"),
        pytest.param(ToolServiceError(ValueError("why")), id="only an exception"),
        pytest.param(ToolServiceError(ValueError()), id="an exception without text"),
        pytest.param(ToolServiceError(message=""), id="an empty message"),
        pytest.param(InvalidParams("why"), id="InvalidParams"),
    ],
)
def test_the_message_is_never_empty(error: ToolServiceError) -> None:
    assert error.message.strip()


def test_extra_is_none_unless_given() -> None:
    assert ToolServiceError().extra is None
    assert InvalidParams("m").extra is None


def test_invalid_params_reads_as_its_message() -> None:
    error = InvalidParams("timeout=0 is not usable", extra={"timeout": 0})
    assert str(error) == error.message == "timeout=0 is not usable"
    assert error.code == "InvalidParams"
    assert error.exception is None
    assert error.extra == {"timeout": 0}


def test_invalid_params_is_caught_as_a_tool_service_error() -> None:
    with pytest.raises(ToolServiceError):
        raise InvalidParams("m")


@pytest.mark.parametrize("kind", [ImageBuildError, SandboxStartError])
def test_a_failed_start_carries_its_log(kind: type[ImageBuildError] | type[SandboxStartError]) -> None:
    assert (str(kind("m", log="last words")), kind("m", log="last words").log) == ("m", "last words")
    assert kind("m").log == ""


def test_a_dead_kernel_carries_its_reason() -> None:
    error = KernelDied("it exited")
    assert (str(error), error.reason) == ("it exited", "it exited")


@pytest.mark.parametrize(
    "error",
    [ToolServiceError(code="C", message="m"), InvalidParams("m"), KernelDied("r"), ImageBuildError("m", "log")],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_a_process_boundary(error: AgentToolsError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
