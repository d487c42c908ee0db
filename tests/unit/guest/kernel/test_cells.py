"""A cell's way to the code that runs: shorter than the stock way, and to the same place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from agent_tools.guest.kernel import cells, lazy_names
from agent_tools.guest.kernel.cells import CellCompiler, CellTransformer
from agent_tools.guest.kernel.lazy_names import LazyNames

PIECES = st.sampled_from(
    (
        *("a", "b.c", "print", "f(", ")", "[", "]", "{", "}", "=", "==", "!=", "!", "!!", "%", "%%", "%x", "?", "??"),
        *(",", ";", "/", "//", " ", "  ", "    ", "\t", "\n", "\n\n", "\\\n", "\f", "\x0b", "\x1c", "\x85", "\u2028"),
        *("#", "'", '"', "'''", '"""', "f'", "if x:", "await ", "async ", ":", "\r", "\r\n", "\xa0", "é", "0", "1.5"),
    )
)
CELLS = st.lists(PIECES, max_size=12).map("".join)


def transformed(manager: TransformerManager, cell: str) -> str:
    """What becomes of a cell; of one that is neither Python nor anything of IPython's, the kind of error."""
    try:
        made = str(manager.transform_cell(cell))
        if made.rstrip("\n") == cell.rstrip("\n"):
            compile(made, "cell", "exec", ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError, AssertionError, RuntimeError, IndexError) as exc:
        return "SyntaxError" if isinstance(exc, SyntaxError) else type(exc).__name__
    return made


@pytest.mark.filterwarnings(
    "ignore:.make_tokens_by_line. received a list of lines"
)  # of text split at \x1c and its like
@given(CELLS)
def test_a_cell_becomes_what_the_stock_transformer_makes_of_it(cell: str) -> None:
    assert transformed(CellTransformer(), cell) == transformed(TransformerManager(), cell)


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
    monkeypatch.setitem(lazy_names.NAMES, "np", ("broken_module", None))
    namespace: dict[str, object] = {}
    LazyNames(namespace).look_at("np.zeros(3)")
    assert not namespace
