"""The forms in which models write calls, as the chat templates of their training have them. Pure parsing.

Servers turn these forms into `tool_calls`, if they have a parser for the model and it is switched on. Otherwise they
arrive as text. `FORMS` is the table of all forms; a form is a `head`, a pattern from the call's first token to its
arguments, and a reader of the arguments. Between calls, `_MARKS` are skipped: tokens that hold no part of a call.

    JSON        {"name": "f", "arguments": {"a": 1}}, also in an array                Hermes, Qwen, Llama, Granite, Phi,
                                                                                              Hunyuan, Jamba, Nemotron
                {"tool_name": "f", "parameters": {"a": 1}}, in an array                              Command R, A
    harmony     <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>                gpt-oss
    Kimi        <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>
    DeepSeek    <｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>
    Mistral     [TOOL_CALLS]f[ARGS]{"a": 1}
    GLM         <tool_call>f <arg_key>a</arg_key><arg_value>1</arg_value></tool_call>
    functions   <function=f><parameter=a>1</parameter></function>                                 Qwen3-Coder, Seed
    invokes     <invoke name="f"><parameter name="a">1</parameter></invoke>      MiniMax, Claude, DeepSeek from 3.2 on
    Gemma       <|tool_call>call:f{a:1,b:<|"|>text<|"|>}<tool_call|>
    Python      [f(a=1, b="text")]                                                                     Llama 3.2 and 4

The cost of a reader is linear in the text: a search for a closing token either finds it, and reading goes on behind it,
or fails, and no call is found at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_tools.code_reader import kept_backslashes
from agent_tools.messages import FunctionCall
from agent_tools.models.base import Json

MAX_NAME_CHARS = 200
TOKENS = (
    *("<tool_call>", "<|tool_call|>", "<|python_tag|>", "<function=", "[TOOL_CALLS]"),
    *("<|start|>assistant", "<|channel|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜DSML｜"),
    *("<minimax:tool_call>", "<function_calls>", "<invoke ", "<antml:", "<|tool_call>", "<start_function_call>"),
    *("<tool_calls>", "<TOOLCALL>", "<seed:tool_call>", "<|START_ACTION|>"),
)
"""What calls begin with, where other text may stand before them."""

_MARKS = re.compile(
    r"[\s;,]+|</?tool_call>|<\|/?tool_call\|>|</?TOOLCALL>|</s>|<\|python_tag\|>|\[TOOL_CALLS\]"
    r"|<\|tool_calls_section_(?:begin|end)\|>|<\|tool_call_end\|>|<\|(?:call|end|return|eom_id|eot_id|im_end)\|>"
    r"|<｜tool▁calls?▁(?:begin|end)｜>"
    r"|</?[^<>\s/\"]{0,20}(?:tool_calls?|function_calls)>|</[^<>\s/\"]{0,20}invoke>|</function>"
    r"|<tool_call\|>|<end_function_call>|<\|(?:START|END)_ACTION\|>"
)
_TEMPLATE_TOKEN = re.compile(r"<\|?[^<>|]*\|?>?")  # `python<|channel|>commentary`: of gpt-oss, read by many servers so
_NAMESPACE = re.compile(r"^(?:functions?|default_api|tools?)[.:/]+|:\d+$")  # `functions.python:0`
_CONTENT_TYPES = ("json", "commentary", "analysis", "final", "code")  # what remains where a server drops the tokens
_INTERPRETER_NAMES = frozenset(
    ("code_interpreter", "execute_code", "execute_python", "ipython", "python", "python_interpreter", "run_python")
)
_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "input")
_DECODER = json.JSONDecoder(strict=False)
_JSON_TYPES = frozenset(("integer", "number", "boolean", "object", "array", "null"))

Types = Mapping[str, frozenset[str]]
"""JSON types of a function's parameters, by name; none for those whose schema does not say."""
_Found = tuple[list[FunctionCall], int]


def declared_name(name: str, declared: Mapping[str, object]) -> str:
    """Return the declared function that a model means by a name; the name itself if none or several match.

    Servers that do not parse a model's template well leave tokens and namespaces of it in the names of calls. Models
    also call the interpreter by the name that it had in their training: values of `declared` are true for functions
    that run code.
    """
    if name in declared or len(name) > MAX_NAME_CHARS:
        return name
    plain = _NAMESPACE.sub("", _TEMPLATE_TOKEN.split(name.strip(), maxsplit=1)[0].strip())
    plain = _NAMESPACE.sub("", plain)
    endings = [plain.removesuffix(ending) for ending in _CONTENT_TYPES if plain.endswith(ending)]
    for candidate in (plain, plain.rpartition(".")[2], *endings):
        found = [each for each in declared if each.casefold() == candidate.casefold()]
        if len(found) == 1:
            return found[0]
    interpreters = [each for each, runs_code in declared.items() if runs_code]
    means_interpreter = any(each.casefold() in _INTERPRETER_NAMES for each in (plain, *endings))
    return interpreters[0] if len(interpreters) == 1 and means_interpreter else name


@dataclass(frozen=True)
class Form:
    """One form of calls. `head` ends where the arguments begin, and has the function's `name`, if it stands there.

    `read` takes the text, the match of the head, and the types of parameters. It returns the calls and the place behind
    them, and raises ValueError where there is no whole call.
    """

    head: re.Pattern[str]
    read: Callable[[str, re.Match[str], Types], _Found]


def read_calls(
    text: str, declared: Mapping[str, object], schemas: Mapping[str, Json | None]
) -> tuple[FunctionCall, ...]:
    """Read the calls of a text that consists only of calls; names are those of the declared functions.

    Raises:
        ValueError: the text has other content, or a call of another function.
    """
    try:
        return _calls(text, declared, schemas)
    except ValueError:
        if _form_at(text, _behind_marks(text, 0))[0] is not FORMS[-1]:
            raise
        return _calls(kept_backslashes(text), declared, schemas)  # as in arguments of other calls


def _calls(text: str, declared: Mapping[str, object], schemas: Mapping[str, Json | None]) -> tuple[FunctionCall, ...]:
    calls: list[FunctionCall] = []
    place = _behind_marks(text, 0)
    while place < len(text):
        form, head = _form_at(text, place)
        named = declared_name(head["name"], declared) if "name" in form.head.groupindex else ""
        found, place = form.read(text, head, _types(schemas.get(named)))
        for call in found:
            name = declared_name(call.name, declared)
            if name not in declared:
                raise ValueError("a call of another function")
            calls.append(FunctionCall(name, call.arguments))
        place = _behind_marks(text, place)
    return tuple(calls)


def behind_mark(text: str, place: int) -> int:
    """Return the place behind the mark or the white space at a place; the place itself if there is none."""
    mark = _MARKS.match(text, place)
    return mark.end() if mark else place


def _behind_marks(text: str, place: int) -> int:
    """Return the place of the next call's head. A loop: a pattern would remember every repetition."""
    while not any(form.head.match(text, place) for form in FORMS[:-1]):
        behind = behind_mark(text, place)
        if behind == place:
            break
        place = behind
    return place


def _form_at(text: str, place: int) -> tuple[Form, re.Match[str]]:
    for form in FORMS:
        if head := form.head.match(text, place):
            return form, head
    raise ValueError("not a call")


def _space(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place


def _read_json(text: str, head: re.Match[str], _types: Types) -> _Found:
    """Read one JSON value, whose calls stand in it with their names."""
    value, end = _DECODER.raw_decode(text, head.end())
    return [_call_of(each) for each in (value if isinstance(value, list) and value else [value])], end


def _call_of(value: Any) -> FunctionCall:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    names = [value[key] for key in _NAMES if key in value] if isinstance(value, dict) else []
    if len(names) != 1 or not isinstance(names[0], str):
        raise ValueError("not a call")
    given = [value[key] for key in _ARGUMENTS if key in value]
    if len(given) != 1 or not (given[0] is None or isinstance(given[0], (dict, str))):
        raise ValueError("not a call")
    arguments = given[0] if isinstance(given[0], str) else _json_of(given[0] or {})
    return FunctionCall(names[0], arguments)


def _read_arguments(closing: str, *, may_be_cut: bool = False) -> Callable[[str, re.Match[str], Types], _Found]:
    """Return a reader of arguments as JSON, or, if they are no JSON, as text up to a token; '' for no such token.

    Args:
        closing: pattern of the token.
        may_be_cut: text ends at the end, too: the token tells servers to stop, and they leave it out.
    """
    end_of = re.compile(closing) if closing else None

    def read(text: str, head: re.Match[str], _types: Types) -> _Found:
        start = head.end()
        try:
            value, end = _DECODER.raw_decode(text, start)
            if not isinstance(value, dict):
                raise ValueError("not arguments")
        except (ValueError, RecursionError):
            token = end_of.search(text, start) if end_of else None
            if token is None and (text[start : start + 1] == "{" or not may_be_cut):
                raise
            end = token.start() if token else len(text)
        behind = end_of.match(text, end) if end_of else None
        return [FunctionCall(head["name"], text[start:end].strip())], behind.end() if behind else end

    return read


def _read_pairs(
    parameter: re.Pattern[str], closing: str, end: re.Pattern[str]
) -> Callable[[str, re.Match[str], Types], _Found]:
    """Return a reader of parameters between tags.

    Args:
        parameter: the opening tag, with the parameter's `key`; `space` is the prefix of the form's tags, if it has one,
            and `string` is whether the value is text, if the model says so.
        closing: the closing tag of a value, in which `{}` stands for the prefix.
        end: what has to follow the last parameter.
    """

    def read(text: str, head: re.Match[str], types: Types) -> _Found:
        found: dict[str, Any] = {}
        place, prefix = head.end(), head.groupdict().get("space") or ""
        tag = closing.format(prefix)
        while opening := parameter.match(text, place):
            until = text.find(tag, opening.end())
            if until < 0:
                raise ValueError("a parameter without an end")
            key, given = opening["key"].strip(), opening.groupdict().get("string")
            of_type = {"true": frozenset(("string",)), "false": _JSON_TYPES}.get(given or "", types.get(key))
            found[key] = _value(text[opening.end() : until], of_type or frozenset())
            place = _space(text, until + len(tag))
        if not found and text[place : place + 1] == "{":  # DeepSeek may write JSON between its tags
            value, place = _DECODER.raw_decode(text, place)
            found, place = value, _space(text, place)
        if end.match(text, place) is None:
            raise ValueError("not a parameter")
        return [FunctionCall(head["name"], _json_of(found))], place

    return read


def _value(text: str, types: frozenset[str]) -> Any:
    """Return a value that stands between tags: text, without the line breaks next to its tags, or JSON by its types."""
    text = text.removeprefix("\n").removesuffix("\n")
    if not types or "string" in types or not types & _JSON_TYPES:
        return text
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text  # the tool reports the error


def _types(schema: Json | None) -> dict[str, frozenset[str]]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): frozenset(_named(each)) for name, each in properties.items() if isinstance(each, Mapping)}


def _named(schema: Json) -> Iterator[str]:
    """Yield the types that a parameter's schema names, those of its alternatives included."""
    alternatives = [each for key in ("anyOf", "oneOf") if isinstance(each := schema.get(key), list)]
    for each in (schema, *(one for listed in alternatives for one in listed if isinstance(one, Mapping))):
        kinds = each.get("type")
        yield from (kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str))


def _json_of(value: Any) -> str:
    """Write JSON as text that can be sent on: half a surrogate pair stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_GEMMA_PART = re.compile(r'<\|"\|>|<escape>|"|[{}\[\],:]|[^{}\[\],:"<]+|<')


def _read_gemma(text: str, head: re.Match[str], _types: Types) -> _Found:
    """Translate Gemma's objects into JSON: keys are bare, and texts stand between tokens, without escapes."""
    written: list[str] = []
    place = head.end()
    depth = 0
    while found := _GEMMA_PART.match(text, place):
        part, place = found[0], found.end()
        if part == '"':
            value, place = _DECODER.raw_decode(text, found.start())
            part = _json_of(value)
        elif part in ('<|"|>', "<escape>"):
            until = text.find(part, place)
            if until < 0:
                raise ValueError("a text without an end")
            part, place = _json_of(text[place:until]), until + len(part)
        elif text[place : place + 1] == ":" and (key := part.strip()):
            part = _json_of(key)
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(part, 0)
        written.append(part)
        if not depth:
            break
    arguments = "".join(written)
    json.loads(arguments)
    return [FunctionCall(head["name"], arguments)], place


_PYTHON_CALL = re.compile(r"\s*(?P<name>[A-Za-z_][\w.]{0,199})\s*\(\s*")
_PYTHON_KEY = re.compile(r"([A-Za-z_]\w{0,199})\s*=\s*")
_PYTHON_QUOTE = re.compile(r"'''|\"\"\"|'|\"")
_PYTHON_WORD = re.compile(r"True|False|None")
_PYTHON_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5})|(.))", re.DOTALL)
_PYTHON_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": "", "0": "\0"}
_PYTHON_NEXT = re.compile(r"\s*([,)\]])\s*")


def _read_python(text: str, head: re.Match[str], _types: Types) -> _Found:
    """Read a list of calls as Python has them, with keyword arguments and literal values."""
    calls: list[FunctionCall] = []
    place = head.end(1)
    while opening := _PYTHON_CALL.match(text, place):
        found: dict[str, Any] = {}
        place = opening.end()
        while key := _PYTHON_KEY.match(text, place):
            found[key[1]], place = _literal(text, key.end())
            following = _next(text, place)
            place = following.end() if following[1] == "," else following.start(1)
        closing = _next(text, place, ")")
        calls.append(FunctionCall(opening["name"], _json_of(found)))
        following = _next(text, closing.end(), ",]")
        place = following.end()
        if following[1] == "]":
            return calls, place
    raise ValueError("not a list of calls")


def _next(text: str, place: int, wanted: str = ",)]") -> re.Match[str]:
    found = _PYTHON_NEXT.match(text, place)
    if found is None or found[1] not in wanted:
        raise ValueError("not a list of calls")
    return found


def _literal(text: str, place: int) -> tuple[Any, int]:
    if word := _PYTHON_WORD.match(text, place):
        return {"True": True, "False": False, "None": None}[word[0]], word.end()
    quote = _PYTHON_QUOTE.match(text, place)
    if quote is None:
        return _DECODER.raw_decode(text, place)
    end = _string_end(text, quote)
    return _PYTHON_ESCAPE.sub(_unescaped, text[quote.end() : end]), end + len(quote[0])


def _string_end(text: str, quote: re.Match[str]) -> int:
    """Return the place of a literal's closing quote. A loop: a pattern would remember every repetition."""
    part = re.compile(rf"\\|{quote[0]}")
    place = quote.end()
    while found := part.search(text, place):
        if found[0] != "\\":
            return found.start()
        place = found.end() + 1
    raise ValueError("a text without an end")


def _unescaped(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2] or escape[3]
    return chr(int(digits, 16)) if digits else _PYTHON_ESCAPES.get(escape[4], escape[0])


_SPACE = r"(?P<space>[^<>\s/\"]{0,20})"
FORMS = (
    Form(
        re.compile(
            r"(?:<\|start\|>assistant)?(?:<\|channel\|>(?:commentary|analysis|final))?\s{0,9}to=(?P<name>[^<>\s]{1,200})"
            r"[^<>]{0,40}(?:<\|channel\|>[a-z]{1,20}[^<>]{0,40})?(?:<\|constrain\|>[^<>]{0,40})?<\|message\|>\s*"
        ),
        _read_arguments(r"\s*<\|(?:call|end|return)\|>", may_be_cut=True),
    ),
    Form(
        re.compile(r"<\|tool_call_begin\|>\s{0,9}(?P<name>[^<>\s]{1,200})\s{0,9}<\|tool_call_argument_begin\|>\s*"),
        _read_arguments(r"\s*<\|tool_call_end\|>"),
    ),
    Form(
        re.compile(
            r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<name>[^<>\s]{1,200})"
            r"(?:<｜tool▁sep｜>|\s{1,9})(?:```json)?\s*(?=\{)"
        ),
        _read_arguments(r"\s*(?:```\s*)?<｜tool▁call▁end｜>"),
    ),
    Form(
        re.compile(
            r"\[TOOL_CALLS\]\s{0,9}(?P<name>[^<>\s\[\]{]{1,200})(?:\[CALL_ID\][^\[\s]{0,60})?(?:\[ARGS\])?\s*(?=\{)"
        ),
        _read_arguments(""),
    ),
    Form(
        re.compile(r"<tool_call>\s{0,9}(?P<name>[^<>\s{\[]{1,200})\s*(?=<arg_key>|</tool_call>)"),
        _read_pairs(
            re.compile(r"<arg_key>(?P<key>[^<>]{1,200})</arg_key>\s*<arg_value>"),
            "</arg_value>",
            re.compile(r"</tool_call>|\Z"),
        ),
    ),
    Form(
        re.compile(r"<function=(?P<name>[^<>\s]{1,200})>\s*"),
        _read_pairs(
            re.compile(r"<parameter=(?P<key>[^<>\s]{1,200})>"),
            "</parameter>",
            re.compile(r"</function>|</tool_call>|\Z"),
        ),
    ),
    Form(
        re.compile(rf"<{_SPACE}invoke\s{{1,9}}name=\"(?P<name>[^\"<>]{{1,200}})\"\s{{0,9}}>\s*"),
        _read_pairs(
            re.compile(
                rf"<{_SPACE}parameter\s{{1,9}}name=\"(?P<key>[^\"<>]{{1,200}})\""
                r"(?:\s{1,9}string=\"(?P<string>true|false)\")?\s{0,9}>"
            ),
            "</{}parameter>",
            re.compile(r"</[^<>\s/\"]{0,20}invoke>|\Z"),
        ),
    ),
    Form(
        re.compile(r"(?:<\|tool_call>|<start_function_call>)\s{0,9}call:(?P<name>[^<>\s{}]{1,200})\s{0,9}(?=\{)"),
        _read_gemma,
    ),
    Form(re.compile(r"(\[)(?=\s{0,9}(?P<name>[A-Za-z_][\w.]{0,199})\s{0,9}\()"), _read_python),
    Form(re.compile(r"(?=[\[{])"), _read_json),
)
"""All forms, in the order in which they are tried; the last one has no tokens of its own."""
