import pytest

from agent_tools.guest.wire.message_limits import LIMITS_VARIABLE, MessageLimits
from agent_tools.limits import CallLimits, Limits


def test_the_default_limits_are_those_of_the_settings_and_need_no_variable() -> None:
    default = MessageLimits(Limits().max_message_bytes, CallLimits().max_message_bytes)
    assert default == MessageLimits() == MessageLimits.pop_from({})
    assert default.variables() == {}


@pytest.mark.parametrize("limits", [MessageLimits(kernel=1000), MessageLimits(call=2**40), MessageLimits(1, 2)])
def test_limits_are_taken_out_of_the_environment(limits: MessageLimits) -> None:
    environ = {"HOME": "/", **limits.variables()}
    assert LIMITS_VARIABLE in environ
    assert MessageLimits.pop_from(environ) == limits
    assert environ == {"HOME": "/"}
