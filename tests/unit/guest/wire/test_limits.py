import pytest

from agent_tools.guest.wire.limits import VARIABLE, MessageLimits, heard
from agent_tools.limits import CallLimits, Limits


def test_the_usual_limits_are_those_of_the_settings_and_need_no_word() -> None:
    usual = MessageLimits(Limits().max_message_bytes, CallLimits().max_message_bytes)
    assert usual == MessageLimits() == heard({})
    assert usual.told() == {}


@pytest.mark.parametrize("limits", [MessageLimits(kernel=1000), MessageLimits(call=2**40), MessageLimits(1, 2)])
def test_what_is_told_is_heard_once(limits: MessageLimits) -> None:
    environ = {"HOME": "/", **limits.told()}
    assert VARIABLE in environ
    assert heard(environ) == limits
    assert environ == {"HOME": "/"}
