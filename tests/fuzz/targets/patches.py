"""Changes of files as a model writes them: the arguments of `apply_patch`, and the diff on the text of a file.

`MARK` divides the diff from the file's text; without it, the input is the arguments of a call.
"""

from __future__ import annotations

from agent_tools.errors import InvalidParams
from agent_tools.gateway.tools.patch import patch_arguments, read_patch_call
from agent_tools.gateway.tools.v4a_diff import DiffError, changed, created
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target

MARK = b"<|>"


def unfold_patch(data: bytes) -> Parts:
    """The diff and the text, or the arguments."""
    return [unfold.text(part) for part in data.split(MARK, 1)]


def apply(parts: Parts) -> None:
    """Apply it: the result has no line that neither the text nor the diff has."""
    diff = parts[0].decode(errors="replace")
    if len(parts) == 1:
        call = read_patch_call(diff)
        assert read_patch_call(patch_arguments(call.operation)).operation == call.operation
        return
    text = parts[1].decode(errors="replace")
    for result in (_or_none(lambda: changed(text, diff)), _or_none(lambda: created(diff))):
        if result is not None:
            known = {
                *text.replace("\r\n", "\n").split("\n"),
                *(line[1:] for line in diff.replace("\r\n", "\n").split("\n")),
            }
            assert {*result.replace("\r\n", "\n").split("\n")} <= known | {""}


def _or_none(work):  # type: ignore[no-untyped-def]
    try:
        return work()
    except DiffError:
        return None


TARGET = Target(
    apply,
    unfold_patch,
    allowed=(InvalidParams,),
    words=(
        MARK,
        b"@@\n",
        b"@@ a\n",
        b"@@ a \n",
        b" a\n",
        b"-a\n",
        b"+a\n",
        b"*** End of File\n",
        b"*** Begin Patch\n",
        b"\r\n",
        b'{"type": "update_file", "path": "a", "diff": "',
        b'{"operation": {"type": "delete_file", "path": "a"}}',
        unfold.repeat(3, 12),
    ),
    max_len=2048,
)
