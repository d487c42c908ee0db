r"""Code as models write it, for every door that runs some: what runs of each text, or that nothing does.

`F` stands for a fence. Codes are never run: a session that notes what arrives is enough.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from agent_tools.results.execution import Execution, Output
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine

F = "```"
REFUSED = None


@dataclass(frozen=True)
class Written:
    """A text, the code that runs of it (`REFUSED`: none), and a word of the note (''; none is made)."""

    text: str
    code: str | None
    note: str = ""


def same(text: str) -> Written:
    return Written(text, text)


README = f"md = '''\n# Use\n{F}python\nimport x\n{F}\n'''\nprint(md)"
SQL = f"q = '''\n{F}sql\nselect 1\n{F}\n'''\nprint(q)"
AROUND, OTHERS, JOINED, LINE_ENDS = "text around", "other blocks", "blocks of Python", "line ends"

PLAIN = [
    same(code)
    for code in (
        *(
            "print(1)",
            "x = 1\nprint(x)\n",
            "if x:\n\n    y()\n",
            "\n\nprint(1)\n\n",
            "# only a comment",
            "1",
            '"text"',
            "'''doc'''",
        ),
        *("print('a\\nb')", "re.findall(r'\\d+', s)", "s = 'it\\'s'", 'print("say \\"hi\\"")', "p = r'C:\\new\\table'"),
        *("x = 1 + \\\n    2", "x = 'a\\\nb'", "s = b'\\x00\\n'", "f'{x!r:>{w}}'", "f\"{d['a']}\"", "f'{{}}\\n{x}'"),
        "print(f'{'\\n'.join(x)}')",
        "print(f'{f'{'\\n'}'}')",
        'f"{x:\'>10}\\n"',
        *("type X = int", "def f[T](x: T) -> T: return x", "try: pass\nexcept* E: pass", "match x:\n    case 1: pass"),
        *(
            "%matplotlib inline\nplt.plot()",
            "!pip install x",
            "!echo 'it\\ns'",
            "!grep -oP '\\d+' f",
            "files = !ls -la | grep '\\n'",
        ),
        *("%%bash\necho 'it' \\\n  's'", "%time f(r'\\n')", "x?", "%%timeit\nsum(range(9))", "n = 7 % 2", "t = %pwd"),
        f"%%writefile R.md\n# T\n{F}bash\nls\n{F}\n",
        *("print('```')", "x = '```'  # ```", "'''\n```\n'''", '"""\n```python\nx\n```\n"""', "# ```\n# x\n# ```"),
        *(
            README,
            SQL,
            f"# it's '''odd\nmd = '''\n{F}bash\nls\n{F}\n'''\nprint(len(md))",
            f"x = rf'''\n{F}\n\\{{x}}\n{F}\n'''",
        ),
        f'm = f"""\n{F}\n{{d["""k"""]}}\n{F}\n"""',
        "x = '''text\n>>> p\n... q\n'''",
        "{1, 2}",
        "{x: y for x, y in z}",
        "{**a}",
        '{"a": 1}["a"]',
        "print(1)\r\nprint(2)\r\n",
        "😀 = '中文'",
        "print('unclosed",
        "print('''unclosed\n",
        "prose that is no Python, it's not",
        "`print(1)`",
        "x = `1`",
        "a \\ b",
        "",
        " \n",
    )
]

FENCED = [
    Written(f"{F}python\nprint(1)\n{F}", "print(1)"),
    Written(f"{F}\nprint(1)\n{F}", "print(1)"),
    Written(f"{F}py\nprint(1)\n{F}\n", "print(1)"),
    Written(f"{F}Python\nprint(1)\n{F}", "print(1)"),
    Written(f"{F}python3\nprint(1)\n{F}", "print(1)"),
    Written(f"{F}ipython\n%pwd\n{F}", "%pwd"),
    Written(f"{F}{{python}}\nprint(1)\n{F}", "print(1)"),
    Written(f"{F} python title=a.py\nprint(1)\n{F}", "print(1)", "title=a.py"),
    Written(f'{F}python title="a b.py" {{1,3}}\nprint(1)\n{F}', "print(1)", "{1,3}"),
    Written(f"{F}python app.py\nprint(1)\n{F}", "print(1)", "app.py"),
    Written(f"{F}python:src/app.py\nprint(1)\n{F}", "print(1)", "src/app.py"),
    Written(f"{F}python an example\nprint(1)\n{F}", "print(1)", "an example"),
    Written(f"{F}{{.python .numberLines}}\nprint(1)\n{F}", "print(1)"),
    Written(f"{F}python df = df.dropna()\nprint(len(df))\n{F}", "df = df.dropna()\nprint(len(df))"),
    Written(f"{F}python x = 1; y = 2\nprint(x)\n{F}", "x = 1; y = 2\nprint(x)"),
    Written(f"{F}py x=1\nprint(x)\n{F}", "x=1\nprint(x)"),
    Written(f"{F}python import os\nos.getcwd()\n{F}", "import os\nos.getcwd()"),
    Written(f"{F}python for i in range(3):\n    print(i)\n{F}", "for i in range(3):\n    print(i)"),
    Written(f"{F}python # clean\nprint(1)\n{F}", "# clean\nprint(1)"),
    Written(f"{F}python @dec\ndef f(): pass\n{F}", "@dec\ndef f(): pass"),
    Written(f"{F}python x = '''a\n{F}\nb'''\nprint(x)\n{F}", f"x = '''a\n{F}\nb'''\nprint(x)"),
    Written(f"{F}python print(1){F}", "print(1)"),
    Written(f"{F}python print(1)", "print(1)"),
    Written(f"{F}python df\n{F}", "df"),
    Written(f"{F}python%%bash\nls\n{F}", "%%bash\nls"),
    Written(f"{F}python !pip install x\n{F}", "!pip install x"),
    Written(f"{F}python!pip install x\n{F}", "!pip install x"),
    Written(f"{F}%%bash\nls\n{F}", "%%bash\nls"),
    Written(f"{F}pythonx = 5", "x = 5", "own line"),
    Written(f"{F}pythonimport os\nos.getcwd()\n{F}", "import os\nos.getcwd()", "own line"),
    Written(f"Do:\n{F}python print(1){F}\nThanks.", "print(1)", AROUND),
    Written(f"{F}python x = 1\n{F}\n{F}python print(x)\n{F}", "x = 1\n\nprint(x)", JOINED),
    Written(f"{F}tool_code\nprint(1)\n{F}", "print(1)"),
    Written(f"\n\n  \n{F}python\nprint(1)\n{F}\n\n", "print(1)"),
    Written(f"{F}python\n\nif x:\n\n    y()\n\n{F}", "\nif x:\n\n    y()"),
    Written(f"{F}python\nprint(1)\n", "print(1)"),
    Written(f"{F}python\nprint(1){F}", "print(1)"),
    Written(f"{F}python\nprint(1) {F} \n", "print(1) "),
    Written(f"{F}python\nprint(1)  # done{F}", "print(1)  # done"),
    Written(f"{F}\nprint('a{F}')\n{F}", f"print('a{F}')"),
    Written(f"{F}`python\nprint('{F}')\n{F}\n{F}`", f"print('{F}')\n{F}"),
    Written(f"{F}python\nprint(1)\n{F}`\n", "print(1)"),
    Written(f"{F}python\n{SQL}\n{F}", SQL),
    Written(f"{F}python\n{README}\n{F}", README),
    Written(f"{F}\n{README}\n{F}", README),
    Written(f"{F}python\nprint('''\n{F}\n''')\n{F}", f"print('''\n{F}\n''')"),
    Written(f"{F}python\nx = 'a\\\n{F}\\\nb'\n{F}", f"x = 'a\\\n{F}\\\nb'"),
    Written(f"{F}python\n# it's '''odd\nprint(1)\n{F}", "# it's '''odd\nprint(1)"),
    Written(
        f"{F}python\n%%writefile R.md\n# T\n{F}bash\nls\n{F}\nmore\n{F}",
        f"%%writefile R.md\n# T\n{F}bash\nls\n{F}\nmore",
    ),
    Written(f"{F}python\n%%bash\necho it's\n{F}", "%%bash\necho it's"),
    Written(f"{F}python\n!echo it's\n{F}", "!echo it's"),
    Written(f"Here it is:\n\n{F}python\nprint(1)\n{F}\nThanks.", "print(1)", AROUND),
    Written(f"It's '''odd:\n{F}python\nprint(1)\n{F}", "print(1)", AROUND),
    Written(f"Use `x` and {F}y{F}:\n{F}python\nprint(1)\n{F}", "print(1)", AROUND),
    Written(f"1. Do:\n   {F}python\n   if x:\n       y()\n   {F}\n", "if x:\n    y()", AROUND),
    Written(f"Do:\n{F}python\nprint(1)\n", "print(1)", AROUND),
    Written(f"x = 1\n{F}python\nprint(x)\n{F}", "print(x)", AROUND),
    Written(f"Expected:\n{F}\n42\n{F}\n{F}python\nprint(6*9)\n{F}", "print(6*9)", OTHERS),
    Written(f"{F}\n42\n{F}\n{F}python\nprint(6*9)\n{F}", "print(6*9)", OTHERS),
    Written(f"Install:\n{F}bash\npip install x\n{F}\n{F}python\nprint('py')\n{F}", "print('py')", "bash"),
    Written(f"{F}python\nprint(1)\n{F}\n{F}text\n1\n{F}", "print(1)", "text"),
    Written(f"{F}python\nprint(1)\n{F}\nOutput:\n{F}\n1\n{F}", "print(1)", OTHERS),
    Written(f"{F}json\n[1]\n{F}\n{F}\nprint(1)\n{F}", "print(1)", "json"),
    Written(f"{F}python\na = 1\n{F}\nthen\n{F}python\nprint(a)\n{F}", "a = 1\n\nprint(a)", JOINED),
    Written(f"{F}python\na = 1\n{F}\n{F}py\nprint(a)\n{F}", "a = 1\n\nprint(a)", JOINED),
    Written(f"{F}python\na = 1\n{F}python\nprint(a)\n{F}", "a = 1\n\nprint(a)", JOINED),
    Written(f"{F}python\n{SQL}\n{F}\n{F}python\n{README}\n{F}", f"{SQL}\n\n{README}", JOINED),
    Written(f"{F}python\nx = '''a\n{F}\n{F}python\nprint(1)\n{F}", "x = '''a\n\nprint(1)", JOINED),
    Written(f"{F}python\n\n{F}\n{F}python\nprint(1)\n{F}", "print(1)"),
    Written(f"print(1)\n{F}", "print(1)", "closing fence"),
    Written(f"print(1){F}", "print(1)", "closing fence"),
    Written(f"{F}python\r\nprint(1)\r\n{F}\r\n", "print(1)\r"),
    Written(f"{F}python\n{F}", ""),
    Written(f"{F}bash\nls\n{F}", REFUSED),
    Written(f"{F}text\nprint(1)\n{F}", REFUSED),
    Written(f"{F}print(1)\n{F}", REFUSED),
    Written(f"{F}js\n1\n{F}\n{F}sh\nls\n{F}", REFUSED),
    Written(f"{F}\n42\n{F}\n{F}\nprint(6*9)\n{F}", REFUSED),
    Written(f"Prose\n{F}\nmore prose", REFUSED),
    Written(f"{F}python\na = 1\n{F}\n{F}python\n%%bash\nls\n{F}", REFUSED),
    Written(f"{F}python\n%%writefile a.md\n{F}\nx\n{F}\n{F}", REFUSED),
    Written(f"{F}json\n[1, 2]\n{F}", REFUSED),
    Written(f"{F}markdown\n# T\n{F}python\nprint(1)\n{F}\n{F}\n", REFUSED),
]

ONE_LINE = [
    Written("import math\\nprint(math.pi)", "import math\nprint(math.pi)", LINE_ENDS),
    Written("if x:\\n\\ty()\\n", "if x:\n\ty()\n", LINE_ENDS),
    Written("a = 1\\r\\nprint(a)", "a = 1\r\nprint(a)", LINE_ENDS),
    Written('import x\\nprint(\\"a\\")', 'import x\nprint("a")', LINE_ENDS),
    Written('import x\\nprint(\\"a\\\\nb\\")', 'import x\nprint("a\\nb")', LINE_ENDS),
    Written('import x\\nprint("a\\nb")', 'import x\nprint("a\\nb")', LINE_ENDS),
    Written("import re\\nprint(re.split(r'\\n', s))", "import re\nprint(re.split(r'\\n', s))", LINE_ENDS),
    Written(f"{F}python\\nprint(1)\\n{F}", "print(1)", LINE_ENDS),
    Written("import x\\nprint('a\\tb')", REFUSED),
    Written("print(1)\\nprint('", "print(1)\\nprint('", "not as line ends"),
    Written("# compute\\nprint(1)", "# compute\\nprint(1)", "comment"),
]

TEXTS = [*PLAIN, *FENCED, *ONE_LINE]
"""Texts that are code, or hold some, wherever a door takes code."""


def arguments(code: str) -> str:
    return json.dumps({"code": code})


ESCAPES, P1 = "invalid escapes", arguments("print(1)")
ARGUMENTS = [
    Written(P1, "print(1)"),
    Written(f" \n{P1}\n ", "print(1)"),
    Written(f"\ufeff{P1}", "print(1)"),
    Written('{"code": "a\\nb"}', "a\nb"),
    Written('{"code": "a\nb"}', "a\nb"),
    Written('{"code": "x", "timeout": 3}', "x"),
    Written("{'code': 'print(1)'}", "print(1)"),
    Written("{code: 'print(1)',}", "print(1)"),
    Written('{"code": "print(1)", /* why */}', "print(1)"),
    Written(json.dumps(P1), "print(1)"),
    Written(f"{F}json\n{P1}\n{F}", "print(1)"),
    Written(f"{F}\n{P1}\n{F}", "print(1)"),
    Written(f"{F}tool_call\n{P1}\n{F}", "print(1)"),
    Written(arguments(f"{F}python\nprint(1)\n{F}"), "print(1)"),
    Written(
        r"""{"code": "import re\nprint(re.findall(r'\d+', 'a12'))"}""",
        "import re\nprint(re.findall(r'\\d+', 'a12'))",
        ESCAPES,
    ),
    Written(
        r"""{"code": "re.split(r'\s+', 'a b'), re.sub('\.', '', s)"}""",
        r"re.split(r'\s+', 'a b'), re.sub('\.', '', s)",
        ESCAPES,
    ),
    Written(r"""{"code": "re.findall(r'\b\d+\b', s)"}""", r"re.findall(r'\b\d+\b', s)", ESCAPES),
    Written(r"""{"code": "open(r'C:\data\new.csv')"}""", "open(r'C:\\data\new.csv')", ESCAPES),
    Written(r"""{"code": "open(r'C:\temp\data')"}""", r"open(r'C:\temp\data')", ESCAPES),
    Written(r"""{"code": "plt.title('$\alpha$')"}""", r"plt.title('$\alpha$')", ESCAPES),
    Written(r"""{"code": "print('\x41\u00e9\u12')"}""", "print('\\x41é\\u12')", ESCAPES),
    Written(r"""{"code": "if x:\n\ty = r'\d'"}""", "if x:\n\ty = r'\\d'", ESCAPES),
    Written('{"code": "x = 1 + \\\n2"}', "x = 1 + \\\n2", ESCAPES),
    Written(r"""{"code": "print(\'hi\')"}""", "print('hi')", ESCAPES),
    Written(r"""{"code": "print('it\'s')"}""", r"print('it\'s')", ESCAPES),
    Written(r"""{"code": "re.findall(\'\d+\', s)"}""", r"re.findall('\d+', s)", ESCAPES),
    Written(r"""{'code': 'print(\'hi\')'}""", "print('hi')"),
    Written(r"""{'code': 're.findall("\d+", s)'}""", r"""re.findall("\d+", s)""", ESCAPES),
    Written(r"""{"code": "%%bash\necho \'a\'"}""", "%%bash\necho \\'a\\'", ESCAPES),
    Written(r"""{"code": "re.findall(r'\bx', s)"}""", "re.findall(r'\x08x', s)", "control character"),
    Written(r"""{"code": "plt.title('$\frac{a}{b}$')"}""", "plt.title('$\x0crac{a}{b}$')", "control character"),
    Written(f"{{}}{P1}", "print(1)"),
    Written(f"{P1}{P1}", "print(1)"),
    Written(f"{P1}\n{{}}", "print(1)"),
    Written(f"{P1}<|call|>", "print(1)"),
    Written(f"{P1}</tool_call>", "print(1)"),
    Written(f"{P1}\n<|im_end|>\n", "print(1)"),
    Written(r"""{"code": "r'\d'"}{"code": "r'\d'"}""", r"r'\d'", ESCAPES),
    Written('{"code": "print(1)", "code": "print(1)"}', "print(1)"),
    Written('{"code": "a = 1", "code": "print(a)"}', REFUSED),
    Written("{code: 'a = 1', code: 'print(a)'}", REFUSED),
    Written(P1 + arguments("print(2)"), REFUSED),
    Written(f"{P1} and then some", REFUSED),
    Written('{"code": "print(1)', REFUSED),
    Written('{"code": "print("hi")"}', REFUSED),
    Written("{code: print(1)}", REFUSED),
    Written(r"""{"code": "print(\'hi\', \"it's)"}""", REFUSED),
    Written('{"code": """print(1)"""}', REFUSED),
    Written(f'{{"code":\n{F}python\nprint(1)\n{F}\n}}', REFUSED),
    Written("{}", REFUSED),
    Written('{"kode": "print(1)"}', REFUSED),
    Written('{"code": 5}', REFUSED),
    Written(arguments(f"{F}bash\nls\n{F}"), REFUSED),
]
"""Arguments of a call, as a model and its server write them."""


class RecordingRuntime(Runtime):
    """Notes in `ran` the code that arrives at sessions, and runs none."""

    def __init__(self) -> None:
        super().__init__(ProcessEngine(), lambda packages: "none")
        self.ran: list[str] = []

    def open(self, key: str, spec: Any) -> Any:
        return _Recording(super().open(key, spec), self.ran)

    def find(self, key: str) -> Any:
        session = super().find(key)
        return session and _Recording(session, self.ran)


class _Recording:
    def __init__(self, session: Any, ran: list[str]) -> None:
        self._session, self._ran = session, ran

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def stream(self, code: str, timeout: float, cancelled: Any = None, **_: Any) -> Any:
        self._ran.append(code)
        return _nothing()


def _nothing() -> Generator[Output, None, Execution]:
    yield from ()
    return Execution()
