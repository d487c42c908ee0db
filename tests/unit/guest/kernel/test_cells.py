"""A cell's way to the code that runs: shorter than the stock way, and to the same place."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from IPython.core.autocall import ExitAutocall
from IPython.core.history import HistoryManager
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.macro import Macro
from traitlets.config import Config

from agent_tools.guest.kernel import cells
from agent_tools.guest.kernel.cells import CellCompiler, CellTransformer
from agent_tools.guest.kernel.history import CellHistory
from agent_tools.guest.kernel.lazy_names import NAMES, LazyNames
from agent_tools.guest.kernel.shell import SandboxShell

PIECES = st.sampled_from(
    (
        *("a", "b.c", "print", "f(", ")", "[", "]", "{", "}", "=", "==", "!=", "!", "!!", "%", "%%", "%x", "?", "??"),
        *(",", ";", "/", "//", " ", "  ", "    ", "\t", "\n", "\n\n", "\\\n", "\f", "\x0b", "\x1c", "\x85", "\u2028"),
        *(">>>", ">>> ", "...", "... ", "...: ", "   ...: ", "In [1]: ", "[ins] In [2]: ", "\n  \n", "\n>>> a"),
        *("#", "'", '"', "'''", '"""', "f'", "if x:", "await ", "async ", ":", "\r", "\r\n", "\xa0", "é", "0", "1.5"),
    )
)
CELLS = st.lists(PIECES, max_size=12).map("".join)
_PROMPTS_OR_INDENTS = re.compile(r">>>|\.\.\.:|In \[|^[^\S\n]", re.MULTILINE)


def transformed(manager: TransformerManager, cell: str) -> str:
    """What becomes of a cell; of one that is neither Python nor anything of IPython's, the kind of error."""
    try:
        made = str(manager.transform_cell(cell))
        if "get_ipython()" not in made:
            compile(made, "cell", "exec", ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError, AssertionError, RuntimeError, IndexError) as exc:
        return "SyntaxError" if isinstance(exc, SyntaxError) else type(exc).__name__
    return made


SPLIT_TEXT = pytest.mark.filterwarnings("ignore:.make_tokens_by_line. received a list")  # at \x1c and its like


@SPLIT_TEXT
@given(CELLS)
def test_a_cell_becomes_what_the_stock_transformer_makes_of_it(cell: str) -> None:
    assume(not _PROMPTS_OR_INDENTS.search(cell))
    assert transformed(CellTransformer(), cell) == transformed(TransformerManager(), cell)


@SPLIT_TEXT
@given(CELLS, st.sampled_from(["t = r", "print(8 % 3, ", "if True:\n    t = 1 != 2, "]))
def test_a_cell_with_any_text_in_a_string_stays_as_it_is(text: str, before: str) -> None:
    cell = f"{before}'''{text.replace(chr(39), '')} '''{')' * before.count('(')}\n"
    assert CellTransformer().transform_cell(cell) == cell


def test_the_standard_library_stays_as_it_is() -> None:
    transformer = CellTransformer()
    for path in sorted(Path(ast.__file__).parent.glob("*.py"))[::7]:
        source = path.read_text("utf-8").lstrip("\n")
        assert transformer.transform_cell(source) == source, path.name


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            "open('R.md', 'w').write('''# Calc\n\n>>> from calc import add\n>>> add(1, 2)\n3\n''')\n", id="README"
        ),
        pytest.param("t = '''text\n...\n>>> p\n'''\n", id="dots and a prompt"),
        pytest.param("t = '''\n>>>>>>> theirs\n'''\n", id="conflict marker"),
        pytest.param("t = '''\nIn [2]: a\n   ...: b\n'''\n", id="IPython's prompts on a string's second line"),
        pytest.param("t = '''a\n   \nb'''\n", id="line of spaces in a string"),
        pytest.param("    # note\nif x:\n    y = '''\n    z\n    '''\n", id="indented comment first"),
        pytest.param("n = 7 % 4\nt = '''\n>>> p\n'''\n", id="an operator that may be a magic"),
        pytest.param("# >>> a\nt = '''\n>>> p\n'''\n", id="prompt in a comment"),
    ],
)
def test_prompts_and_spaces_in_strings_stay(cell: str) -> None:
    assert CellTransformer().transform_cell(cell) == cell


def test_prompts_in_the_text_of_cell_magics_stay() -> None:
    body = ">>> a\n... b\n>>>>>>> x\nIn [1]: c\n   \n    d\n"
    for magic in ("writefile", "bash", "capture", "time"):
        made = CellTransformer().transform_cell(f"%%{magic} x\n{body}")
        assert ast.literal_eval(made.partition("run_cell_magic(")[2].rstrip()[:-1].join("()"))[2] == body


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(">>> a = 1\n>>> for b in []:\n...     a\n", id="doctest"),
        pytest.param("# copied\n\n>>> a = 1\n", id="comment before"),
        pytest.param("In [1]: a = 1\n   ...: b = 2\n", id="IPython"),
        pytest.param("    >>> a = 1\n    >>> b = 2\n", id="indented"),
        pytest.param("    a = 1\n    b = 2\n", id="indented code"),
    ],
)
def test_prompts_and_indentation_of_copied_code_are_taken_away(cell: str) -> None:
    made = CellTransformer().transform_cell(cell)
    compile(made, "cell", "exec")
    assert made == TransformerManager().transform_cell(cell)


@pytest.mark.parametrize(
    "cell", ["a = %time 1", "x = !ls", "%pwd", "!ls", "/f 1", ",f a", ";f a", "f?", " %pwd", "!=x"]
)
def test_what_is_no_python_is_transformed_as_ever(cell: str) -> None:
    assert CellTransformer().transform_cell(cell) == TransformerManager().transform_cell(cell)


def test_plain_python_is_not_made_tokens_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransformerManager, "do_one_token_transform", lambda *_: pytest.fail("tokens were made"))
    assert CellTransformer().transform_cell("if a != b:\n    print(a / b, [c, d])") == (
        "if a != b:\n    print(a / b, [c, d])\n"
    )


def test_plain_python_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransformerManager, "transform_cell", lambda *_: pytest.fail("it went the long way"))
    assert CellTransformer().transform_cell("if a != b:\n\n    print([...])") == "if a != b:\n\n    print([...])\n"


@pytest.mark.parametrize("transforms", ["cleanup_transforms", "line_transforms"])
def test_a_transform_of_lines_that_is_not_known_sees_every_cell(transforms: str) -> None:
    transformer = CellTransformer()
    getattr(transformer, transforms).append(lambda lines: [line.upper() for line in lines])
    assert transformer.transform_cell("a = 1") == "A = 1\n"


def test_a_transformer_that_is_not_known_sees_every_cell() -> None:
    class Shout(cells.stock.MagicAssign):  # type: ignore[misc]
        @classmethod
        def find(cls, tokens_by_line: list[list[object]]) -> None:
            seen.append(len(tokens_by_line))

    seen: list[int] = []
    transformer = CellTransformer()
    transformer.token_transformers.append(Shout)
    transformer.transform_cell("a = 1")
    assert seen


# -- single lines, and what is kept of them --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shell() -> Iterator[SandboxShell]:
    """A shell with names of each kind, as code can define them."""
    with mock.patch.dict(os.environ):  # which ipykernel's shell changes
        shell = SandboxShell(user_ns={}, config=Config(HistoryManager={"enabled": False}))
    shell.user_ns.update(value=1, call=print, macro=Macro("value\n"), auto=ExitAutocall(), ls=[2], time=3)
    yield shell
    shell.history_manager.end_session()


def test_inputs_are_kept_as_the_stock_history_keeps_them(shell: SandboxShell) -> None:
    def kept(kind: type[HistoryManager]) -> tuple[list[str], list[str], dict[str, object]]:
        history = kind(shell=shell, enabled=False)
        for number, (cell, raw) in enumerate([("a\n", "a"), ("run('x')\n", "%x"), ("exit()", "exit()"), ("b", None)]):
            history.store_inputs(number + 1, cell, raw)
        names = {name: value for name, value in shell.user_ns.items() if re.fullmatch("_i+|_i[0-9]+", name)}
        hidden = {name for name in names if name in shell.user_ns_hidden}
        for name in names:
            del shell.user_ns[name]
        return history.input_hist_parsed[1:], history.input_hist_raw[1:], {**names, "hidden": hidden}

    assert kept(CellHistory) == kept(HistoryManager)
    assert not CellHistory(shell=shell, enabled=False).db_input_cache


def test_cells_have_file_names_by_their_text() -> None:
    compiler = CellCompiler()
    first, again, other = (
        compiler.cache(code, number) for number, code in enumerate(("a = 1", "a = 1", "a = 2\ud800"))
    )
    assert first == again != other
    assert Path(first).parent.name.startswith("ipykernel_")


# -- well-known names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("math.pi", {"math"}),
        ("x.math, 'json'", set()),
        ("json.dumps(re.sub('a', 'b', 'a'))", {"json", "re"}),
        ("math.pi +", set()),
        ("mathematics", set()),
        ("math = 1", set()),
        ("math.pi\0", set()),
    ],
)
def test_names_that_code_mentions_are_provided(source: str, names: set[str]) -> None:
    namespace: dict[str, object] = {}
    LazyNames(namespace).look_at(source)
    assert set(namespace) == names


def test_a_name_of_the_user_s_stays_his() -> None:
    namespace: dict[str, object] = {"math": 3}
    LazyNames(namespace).look_at("math, os")
    assert (namespace["math"], set(namespace)) == (3, {"math", "os"})


@pytest.mark.parametrize("reason", ["raise ImportError", "1 / 0", "raise SystemExit"])
def test_a_module_that_cannot_be_imported_leaves_its_name_undefined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    (tmp_path / "broken_module.py").write_text(reason)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(NAMES, "np", ("broken_module", None))
    namespace: dict[str, object] = {}
    LazyNames(namespace).look_at("np.zeros(3)")
    assert not namespace
