"""Diffs without line numbers, alone and beside the implementation in OpenAI's Agents SDK."""

from __future__ import annotations

import random

import pytest

from agent_tools.gateway.tools.v4a_diff import MAX_DIFF, MAX_HUNKS, MAX_TEXT, DiffError, changed, created

TEXT = "import os\n\ndef a():\n    return 1\n\ndef b():\n    return 1\n"
DIFFS = {
    "a line is changed": ("@@\n def a():\n-    return 1\n+    return 2", TEXT.replace("return 1", "return 2", 1)),
    "an anchor leads to it": (
        "@@ def b():\n-    return 1\n+    return 2",
        "return 2\n".join(TEXT.rsplit("return 1\n", 1)),
    ),
    "anchors may be stacked": (
        "@@ def a():\n@@ def b():\n-    return 1\n+    pass",
        "pass\n".join(TEXT.rsplit("return 1\n", 1)),
    ),
    "without @@": ("-import os\n+import sys", TEXT.replace("os", "sys")),
    "two hunks": (
        "@@\n-import os\n+import sys\n@@ def b():\n-    return 1\n+    return 3",
        "return 3\n".join(TEXT.replace("os", "sys").rsplit("return 1\n", 1)),
    ),
    "blanks differ": ("@@\n def a():  \n-return 1\n+    return 2", TEXT.replace("return 1", "return 2", 1)),
    "an empty line without its space": ("@@\n import os\n\n-def a():\n+def c():", TEXT.replace("def a", "def c")),
    "at the end": ("@@\n     return 1\n+# end\n*** End of File", TEXT + "# end\n"),
    "the last of equal lines": ("@@\n-    return 1\n+    return 2\n*** End of File", "2\n".join(TEXT.rsplit("1\n", 1))),
    "with the lines around it": (
        "*** Begin Patch\n*** Update File: a.py\n@@\n-import os\n+import sys\n*** End Patch",
        TEXT.replace("os", "sys"),
    ),
    "only removed": ("@@\n-import os\n-\n def a():", TEXT.removeprefix("import os\n\n")),
    "nothing but added": ("@@\n+# first", "# first\n" + TEXT),
}


@pytest.mark.parametrize("what", DIFFS)
def test_a_diff_changes_what_it_says(what: str) -> None:
    diff, expected = DIFFS[what]
    assert changed(TEXT, diff) == expected
    assert changed(TEXT.replace("\n", "\r\n"), diff) == expected.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("diff", "says"),
    [
        ("", "no hunk"),
        ("@@", "without lines"),
        ("@@\n-import sys\n+import os", "Hunk 1: these lines are not in the file"),
        ("@@\n-import os\n@@\n-import os", "Hunk 2: these lines are not in the file from line 2 on"),
        ("@@ class X\n@@ def b():\n-    return 1", "Hunk 1: no line is 'class X'"),
        ("@@\n*import os", "begins with '\\*'"),
        ("@@\n-import os\n*** End of File\n-x", "begins without '@@'"),
        ("@@\n-a\n" * (MAX_HUNKS + 1), "hunks"),
        ("@@ b\n" * (MAX_HUNKS + 1) + "-a", "lines with '@@'"),
        ("+" * (MAX_DIFF + 1), "characters"),
    ],
)
def test_a_diff_that_does_not_fit_says_why(diff: str, says: str) -> None:
    with pytest.raises(DiffError, match=says):
        changed(TEXT, diff)


def test_a_new_file_has_its_added_lines() -> None:
    assert created("+a\n+\n+ b\n") == "a\n\n b"
    assert created("+a\r\n+b") == "a\r\nb"
    assert created("*** Begin Patch\n*** Add File: a\n+a\n*** End Patch") == "a"
    with pytest.raises(DiffError, match="begins with no"):
        created("+a\nb")
    with pytest.raises(DiffError, match="characters"):
        changed("a" * (MAX_TEXT + 1), "@@\n-a")


def test_it_is_what_the_reference_makes_of_it() -> None:
    """Of diffs that resemble those of models: what both take becomes the same text."""
    from agents.apply_diff import apply_diff

    chance, agreed = random.Random(39), 0
    for _ in range(5_000):
        lines = [chance.choice(LINES) for _ in range(chance.randint(0, 9))]
        diff, text = "\n".join(hunks_of(lines, chance)), "\n".join(lines)
        try:
            ours, theirs = changed(text, diff), apply_diff(text, diff)
        except (DiffError, ValueError):
            continue
        assert ours == theirs, (text, diff)
        agreed += 1
    assert agreed > 1_000


LINES = ["a", "b", "c", "", "  a", "a  ", "x = 1", "*** b"]


def hunks_of(lines: list[str], chance: random.Random) -> list[str]:
    found: list[str] = []
    for _ in range(chance.randint(1, 3)):
        found += chance.sample(["@@", "@@ a", "@@ b", "@@ x = 1"], chance.choice([0, 1, 1, 2]))
        start = chance.randint(0, len(lines))
        for line in lines[start : start + chance.randint(0, 3)]:
            found.append(chance.choice(" -") + line)
            found += ["+new"] * (chance.random() < 0.2)
        found += ["+last"] * (chance.random() < 0.3) + ["*** End of File"] * (chance.random() < 0.15)
    return found


ENDS = {
    "a line break in a cell": (
        'id,note\r\n1,"two\nlines"\r\n2,b\r\n',
        "-2,b\n+2,c\n",
        'id,note\r\n1,"two\nlines"\r\n2,c\r\n',
    ),
    "one CRLF among others": ("a\nb\r\nc\n", "-a\n+A\n", "A\nb\r\nc\n"),
    "the CRLF line itself": ("a\nb\r\nc\n", "-b\n+B\n+D\n", "a\nB\r\nD\r\nc\n"),
    "more lines than before": ("a\r\nb\nc\n", " a\n+A\n", "a\r\nA\r\nb\nc\n"),
    "no line end at the end": ("a\r\nb", "-b\n+B\n+C", "a\r\nB\r\nC"),
    "a lone return at the end": ("a\nb\r", "-a\n+A", "A\nb\r"),
    "a byte order mark": ("\ufeffimport os\nx=1\n", "-import os\n+import sys\n x=1\n", "\ufeffimport sys\nx=1\n"),
    "a mark and CRLF": ("\ufeffa\r\nb\r\n", "@@ a\n-b\n+B", "\ufeffa\r\nB\r\n"),
    "an empty text": ("", "+a\n+b", "a\nb\n"),
}


@pytest.mark.parametrize(("text", "diff", "expected"), ENDS.values(), ids=ENDS)
def test_bytes_that_a_diff_does_not_name_stay(text: str, diff: str, expected: str) -> None:
    assert changed(text, diff) == expected
