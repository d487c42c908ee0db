"""The page's readers of text, in a real browser: code into colours, frames into tables, prose into paragraphs.

What they read comes from models and files. So whatever it is, no character is lost, none becomes markup, and a long
input is done before the test's time limit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from playwright.sync_api import Browser, Page

from agent_tools.gateway.config import GatewayConfig
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine
from tests.gateway.conftest import Gateway

LANGUAGES = ("python", "javascript", "sh", "toml", "json", "nonsense", "constructor")
PIECES = (
    *(
        "'",
        '"',
        "'''",
        '"""',
        "`",
        "```",
        "\\",
        "\n",
        "\r",
        " ",
        "  ",
        "#",
        "//",
        "/*",
        "*/",
        "*",
        "**",
        "[",
        "](",
        ")",
        "|",
    ),
    *(
        "|---|",
        "sandbox:",
        "<b>",
        "&amp;",
        "f'",
        "0x",
        "1e5",
        "e",
        "@",
        "%",
        "def",
        "x(",
        "é",
        "中",
        "😀",
        "\0",
        "- ",
        "1. ",
        "## ",
    ),
    *(
        "$",
        "$$",
        "\\(",
        "\\)",
        "\\[",
        "\\]",
        "\\frac",
        "\\begin{",
        "{",
        "}",
        "^",
        "_",
        "&",
        "\\\\",
        "\\left(",
        "\\right",
        "12",
    ),
    *("> ", "~~", "~~~", "    ", "https://a.b/", "<https://a.b>", "<br>", "---", "- [x] ", "***", "![", "\n\n", ":-:|"),
)
LONG = 20_000
ALLOWED = "P H3 H4 H5 H6 UL OL LI PRE CODE SPAN DIV BUTTON STRONG EM TABLE THEAD TBODY TR TH TD BLOCKQUOTE HR S"
MATHML = (
    *("math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msub", "msup", "msubsup"),
    *("munder", "mover", "munderover", "mtable", "mtr", "mtd"),
)
BOX = "const box = document.createElement('div'); box.append(m.prose(given));"


@pytest.fixture(scope="module")
def page(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page whose modules are called, which leaves the page as it is."""
    config = GatewayConfig(upstream="http://127.0.0.1:9/v1", data_dir=tmp_path_factory.mktemp("gateway"), pool=0)
    runtime = Runtime(ProcessEngine(), lambda packages: "none")
    with Gateway(config, runtime, None) as gateway, chromium.new_context() as context:
        opened = context.new_page()
        opened.goto(gateway.url)
        yield opened
    runtime.close_all()


def call(page: Page, module: str, expression: str, given: Any) -> Any:
    """Evaluate an expression of a module's names and of `given`."""
    return page.evaluate(
        f"async given => {{ const m = await import('/page/text/{module}.js'); return {expression} }}", given
    )


def noise(seed: int, pieces: int) -> str:
    chosen = random.Random(seed)
    return "".join(chosen.choice(PIECES) for _ in range(pieces))


def tokens(page: Page, code: str, language: str = "python") -> list[tuple[str, str]]:
    found = call(page, "highlight", "[...m.tokens(...given)]", [code, language])
    return [(kind, text) for kind, text in found]


def test_python_is_told_apart(page: Page) -> None:
    code = 'def f(x):  # twice\n    return rf"a{x}" + """b\n"c""" + str(0x1F)\n@wraps\nclass_ = 1e-3'
    kinds = [(kind, text) for kind, text in tokens(page, code) if kind]
    assert kinds == [
        *(("keyword", "def"), ("call", "f"), ("comment", "# twice"), ("keyword", "return"), ("string", 'rf"a{x}"')),
        *(("string", '"""b\n"c"""'), ("call", "str"), ("number", "0x1F"), ("meta", "@wraps"), ("number", "1e-3")),
    ]


def test_colours_lose_no_character(page: Page) -> None:
    inputs = [noise(seed, 60) for seed in range(150)]
    inputs += [piece * (LONG // len(piece)) for piece in PIECES]
    for language in LANGUAGES:
        joined = call(
            page,
            "highlight",
            "given[0].map(code => [...m.tokens(code, given[1])].map(t => t[1]).join(''))",
            [inputs, language],
        )
        assert joined == inputs, language


def test_code_that_is_too_long_stays_plain(page: Page) -> None:
    assert tokens(page, "def " * LONG) == [("", "def " * LONG)]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"day": ["Fri 01", "Sat 02"], "sold": [12, 9]}),
        pd.DataFrame({"a b": [1.5, None], "c": ["x", "y z"]}, index=["one", "two"]),
        pd.DataFrame({"n": [1, 2]}, index=pd.Index(["Ulm", "Bonn"], name="city")),
        pd.DataFrame({"n": range(100)}),
        pd.DataFrame({"城市": ["柏林"], "n": [1]}),
    ],
    ids=["range", "labels", "named", "cut", "wide"],
)
def test_a_frame_is_a_table(page: Page, frame: pd.DataFrame) -> None:
    before, table, after = call(page, "table", "m.partsOf(given)", f"before\n{frame}\nafter")
    assert (before.strip(), after.strip().split("\n")[-1]) == ("before", "after")
    assert table["columns"] == [frame.index.name or "", *frame.columns]
    assert table["rows"][0] == [str(frame.index[0]), *map(str, frame.iloc[0])]


@pytest.mark.parametrize(
    "text",
    [
        "0    1\n1    2\ndtype: int64",
        "  indented\n  text",
        "    a   b\n0  1   2\n1  10  20 and more",
        "x\n\n  y\nz",
        "     a  b\\\n0  1  2  \\",
    ],
)
def test_what_is_no_frame_stays_text(page: Page, text: str) -> None:
    assert call(page, "table", "m.partsOf(given)", text) == [text]


def test_a_long_frame_and_long_prose_stay_text(page: Page) -> None:
    lines = ["      n", *(f"{row:<4} {row:>2}"[:7].ljust(7) for row in range(10, 99))]
    assert isinstance(call(page, "table", "m.partsOf(given)[0]", "\n".join(lines)), dict)
    long = "\n".join([lines[0], *lines[1:] * 6])
    assert call(page, "table", "m.partsOf(given)", long) == [long]
    expression = (
        "(() => { const box = document.createElement('div'); box.append(m.prose(given)); return box.innerHTML })()"
    )
    assert call(page, "prose", expression, "# a\n" * 50_001).startswith("<p># a\n# a")


def test_tables_lose_no_letter_of_any_text(page: Page) -> None:
    inputs = [noise(seed, 80) for seed in range(200)] + [
        f"  {piece}\n" * (LONG // (len(piece) + 3)) for piece in PIECES
    ]
    expression = (
        "given.map(text => m.partsOf(text).map(p => typeof p === 'string' ? p : "
        "[p.columns, ...p.rows].map(r => r.join(' ')).join('\\n')).join('\\n'))"
    )
    for text, read in zip(inputs, call(page, "table", expression, inputs), strict=True):
        assert "".join(read.split()) == "".join(text.split())


def test_prose_is_made_of_what_it_needs_and_nothing_else(page: Page) -> None:
    inputs = [noise(seed, 120) for seed in range(200)] + [piece * (LONG // len(piece)) for piece in PIECES]
    expression = (
        "given.map(text => { const box = document.createElement('div'); box.append(m.prose(text));"
        " const all = [...box.querySelectorAll('*')];"
        " if (all.some(e => e.matches('[style], [href], [src], [onclick]'))) throw new Error(text);"
        " return [...new Set(all.map(e => e.tagName))] })"
    )
    allowed = {*ALLOWED.split(), *MATHML}
    for found in call(page, "prose", expression, inputs):
        assert set(found) <= allowed


def test_prose_is_read_as_it_is_meant(page: Page) -> None:
    text = "# Title\nOne *two* **three** `four`.\n\n- a\n- b\n  goes on\n\n1. c\n\n| x | y |\n|--|--|\n| 1 | 2 |\n\n"
    text += "```py\nx = 1\n```"
    expression = (
        "(() => { const box = document.createElement('div'); box.append(m.prose(given));"
        " return [...box.children].map(e => [e.tagName, e.textContent]) })()"
    )
    assert call(page, "prose", expression, text) == [
        *(["H3", "Title"], ["P", "One two three four."], ["UL", "ab\ngoes on"], ["OL", "c"]),
        *(["DIV", "xy12"], ["DIV", "x = 1Copy"]),
    ]


def html(page: Page, text: str) -> str:
    found: str = call(page, "prose", f"(() => {{ {BOX} return box.innerHTML }})()", text)
    return found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "1. a\n   - b\n     1. c\n   - d\n2. e",
            "<ol><li>a<ul><li>b<ol><li>c</li></ol></li><li>d</li></ul></li><li>e</li></ol>",
        ),
        ("1. a\n- b\n2. c", '<ol><li>a</li></ol><ul><li>b</li></ul><ol start="2"><li>c</li></ol>'),
        ("- a\n\n  b\n- c", "<ul><li>a<p>b</p></li><li>c</li></ul>"),
        ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"),
        ("~~a~~ ***b*** \\*c\\* d_e_f 2*3*4", "<p><s>a</s> <strong><em>b</em></strong> *c* d_e_f 2<em>3</em>4</p>"),
        ("**a `b` *c* d**", "<p><strong>a <code>b</code> <em>c</em> d</strong></p>"),
        ("a\n---\nb<br>c", "<p>a</p><hr><p>b\nc</p>"),
        ("``a`b``", "<p><code>a`b</code></p>"),
        ("It costs $5 and $10, or US$3.", "<p>It costs $5 and $10, or US$3.</p>"),
        ("$n$th \\(k\\)", "<p><math><mi>n</mi></math>th <math><mi>k</mi></math></p>"),
        ("$\\frac{1}{$", "<p>$\\frac{1}{$</p>"),
    ],
)
def test_prose_has_the_shape_that_its_author_meant(page: Page, text: str, shown: str) -> None:
    assert html(page, text) == shown


def test_a_link_is_its_label_and_its_address_and_leads_nowhere(page: Page) -> None:
    text = '[a](https://a.b/c_(d)?e=1 "t") [https://a.b](https://a.b) ![p](https://a.b/p.png) <https://a.b>'
    text += " [j](javascript:x)"
    expression = f"(() => {{ {BOX} return [box.textContent, box.querySelectorAll('a, img').length] }})()"
    assert call(page, "prose", expression, text) == [
        "a https://a.b/c_(d)?e=1 https://a.b p https://a.b/p.png https://a.b [j](javascript:x)",
        0,
    ]


def test_cells_of_a_table_have_code_with_pipes_and_emphasis(page: Page) -> None:
    expression = f"(() => {{ {BOX} return [...box.querySelectorAll('th, td')].map(e => e.innerHTML) }})()"
    text = "As follows:\n| a | b |\n|:--|--:|\n| **c** | `d|e` |\n| f\\|g | |"
    assert call(page, "prose", expression, text) == ["a", "b", "<strong>c</strong>", "<code>d|e</code>", "f|g", ""]


def test_columns_of_a_table_stand_where_their_author_marked(page: Page) -> None:
    expression = f"(() => {{ {BOX} return [...box.querySelectorAll('td')].map(e => e.className) }})()"
    text = "| a | b | c | d | e |\n|:--|--:|:-:|---|---|\n| 1 | x | y | 2 | z |"
    assert call(page, "prose", expression, text) == ["left", "right", "middle", "number", ""]


@pytest.mark.parametrize(
    ("tex", "shown"),
    [
        ("x^2_i", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        (r"\frac12", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"),
        (r"\sqrt[3]{x}", "<mroot><mi>x</mi><mn>3</mn></mroot>"),
        (r"f''", "<msup><mi>f</mi><mo>′′</mo></msup>"),
        (r"\mathbb{R}\mathbf{x1}", "<mi>ℝ</mi><mrow><mi>𝐱</mi><mn>𝟏</mn></mrow>"),
        (r"\sin x", '<mi mathvariant="normal">sin</mi><mspace width="0.167em"></mspace><mi>x</mi>'),
        (r"\text{if } x", "<mtext>if\u00a0</mtext><mi>x</mi>".replace("\u00a0", "&nbsp;")),
        (r"\unknown{a}", r"<mtext>\unknown</mtext><mi>a</mi>"),
        (
            r"\sum_{i=1}^n",
            '<munderover><mo movablelimits="true">∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi>'
            "</munderover>",
        ),
        (
            r"\begin{pmatrix}a&b\\c&d\end{pmatrix}",
            '<mrow><mo fence="true" stretchy="true" form="prefix">(</mo><mtable><mtr><mtd><mi>a</mi></mtd>'
            "<mtd><mi>b</mi></mtd></mtr><mtr><mtd><mi>c</mi></mtd><mtd><mi>d</mi></mtd></mtr></mtable>"
            '<mo fence="true" stretchy="true" form="postfix">)</mo></mrow>',
        ),
    ],
)
def test_a_formula_is_mathml(page: Page, tex: str, shown: str) -> None:
    assert call(page, "math", "m.formula(given).innerHTML", tex) == shown


@pytest.mark.parametrize(
    "tex", ["{", "}", r"\frac{1}", r"\left( x", r"\begin{pmatrix} a", "x^", r"\right)", "{" * 30 + "}" * 30, "x" * 4001]
)
def test_what_is_no_whole_formula_is_not_converted(page: Page, tex: str) -> None:
    assert call(page, "math", "m.formula(given)", tex) is None


def test_formulas_of_any_form_are_done_in_time(page: Page) -> None:
    pieces = [*PIECES, "{", "x^", "x_{", r"\sqrt", r"\left(", r"\begin{matrix}", r"\frac", "&", r"\\", r"\hat", "'"]
    inputs = [piece * (4_000 // len(piece)) for piece in pieces] + [noise(seed, 900)[:4_000] for seed in range(60)]
    assert call(page, "math", "given.map(tex => m.formula(tex)?.localName ?? 'math')", inputs) == ["math"] * len(inputs)


def test_prose_of_any_form_is_done_in_time(page: Page) -> None:
    inputs = [piece * (100_000 // len(piece)) for piece in PIECES] + [noise(seed, 20_000) for seed in range(5)]
    assert call(page, "prose", "given.map(text => m.prose(text).nodeType)", inputs) == [11] * len(inputs)
