"""Reads calls that a model wrote as text, whatever template its training had. Pure parsing, of linear cost.

Theory of operation. A call is the name of a function that may be called, and arguments. Both may stand in any frame:
tokens (models/dialect/framing.py), fences, and a word or two that a server made of tokens (`commentary to=`).

    the name    in JSON, in a token (`<function=f>`, `<invoke name="f">`, `<f>`), or in the text before the arguments,
                with prefixes and suffixes (`functions.f:0`, `call:f`, `mcp__x__f`)
    arguments   a JSON object; JSON with small damage (quotes, commas, a brace); tags around each value; a Python call;
                or bare code, for a function that runs code

A text is read as calls only if it has nothing else. Any other word makes it prose that quotes a call, and the whole
text is shown unchanged. So no part of the model's text is lost, and no code is cut. The exception are results that the
model made up after its calls: they are dropped.

The reader goes from left to right and never back; it does not search twice for a closing tag that is missing.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agent_tools.agents.turn.loose_json import LooseReader, json_of
from agent_tools.messages import FunctionCall
from agent_tools.models.base import Json
from agent_tools.models.dialect.framing import (
    NAMESPACE,
    TAG,
    TOKEN,
    is_closing,
    may_become_token,
    name_of,
    token_at,
    token_before,
)
from agent_tools.models.reply_limits import MAX_CALLS
from agent_tools.python_scanner import CELL_MAGIC, parts

MAX_NAME_CHARS = 200
MAX_WORDS = 3  # words of a frame before a name
_CONTENT_TYPES = ("json", "commentary", "analysis", "final", "code")  # what remains where a server drops the tokens
_INTERPRETER_NAMES = frozenset(
    f"{verb}{noun}{rest}"
    for verb in ("", "run_", "exec_", "execute_")
    for noun in ("python", "python3", "ipython", "jupyter", "code")
    for rest in ("", "_code", "_interpreter", "_code_interpreter", "_execution", "_exec", "_repl", "_tool", "_runner")
) - {"code"}
_EXAMPLE = re.compile(
    r"\b(?:example|e\.g|looks? like|syntax|format|template|such as|as follows|instance)\b[^\n]{0,80}:\s*\Z", re.I
)
_NAME_PART = re.compile(r"[^\W_](?:[\w-]*[^\W_])?")
_JSON_TYPES = frozenset(("integer", "number", "boolean", "object", "array", "null"))
Types = Mapping[str, frozenset[str]]
"""JSON types of a function's parameters, by name; none for those whose schema does not say."""


def declared_name(name: str, declared: Mapping[str, object]) -> str:
    """Return the declared function that a model means by a name; the name itself if none or several match.

    Servers leave tokens, namespaces and numbers of a template in the names of calls. Models also call the interpreter
    by the name that it had in their training: values of `declared` are true for functions that run code.
    """
    if name in declared or len(name) > MAX_NAME_CHARS:
        return name
    parts = [part for piece in _NAME_PART.findall(name) for part in (piece, *piece.split("__"))]
    parts += [part.partition("_")[2] for part in parts if part.startswith(("tool_", "function_"))]
    parts += [part.removesuffix(end) for part in parts for end in _CONTENT_TYPES if part.endswith(end)]
    folded = {part.casefold() for part in parts}
    if len(meant := [each for each in declared if each.casefold() in folded]) == 1:
        return meant[0]
    interpreters = [each for each, runs_code in declared.items() if runs_code]
    return interpreters[0] if len(interpreters) == 1 and not meant and folded & _INTERPRETER_NAMES else name


def known_name(written: str, declared: Mapping[str, object]) -> str:
    """Return the declared function that a word names; '' for none."""
    name = declared_name(written.rstrip("."), declared)
    return name if name in declared else ""


def interpreter_names(declared: Mapping[str, object]) -> tuple[str, ...]:
    """Return words of the further names that mean the function that runs code, if there is only one."""
    return ("python", "jupyter", "code_", "_code") if sum(map(bool, declared.values())) == 1 else ()


@dataclass(frozen=True)
class ReadCalls:
    """The calls of a text; `is_repaired`, they had small damage."""

    calls: tuple[FunctionCall, ...]
    is_repaired: bool = False


SEPARATORS = re.compile(r"[\s;,)}\]]+(?!<\]\w)")  # the last `]` may begin a namespace
LABEL = re.compile(r"[*\s]{0,9}(?:(?:tool|function)[ _])?calls?[:*\s]{0,9}(?=```|[{<])", re.IGNORECASE)
"""What a server leaves of a token before calls, or a model writes for one."""
FENCE_LINE = re.compile(r"(?<![^\n])[ \t]*```[a-z_]*[ \t]*(?:\r?\n|\Z)|```[ \t]*(?=[\n<]|\Z)")
_PASSED = (FENCE_LINE, SEPARATORS, LABEL)
WORD = re.compile(r"\w[\w./:=-]{0,199}")
PYTHON_LIST = re.compile(r"\[\s{0,9}(?:[A-Za-z]{1,20} [a-z]{1,20}:\s?)?(?=[^\W\d][\w.]{0,199}\()")
_ATTRIBUTE = re.compile(r"""(?:\b(?:name|function|tool)\s{0,3}[=:]\s{0,3}|[^\s="']=)["'“]?([\w.:/-]{1,200})["'”]?""")
_ATTRIBUTES = re.compile(  # quotes within a value do not end it
    r"""\s([\w-]{1,200})=(["'])(.*?)\2(?=\s+[\w-]{1,200}=["']|\s*/?[|｜]{0,2}>)"""
)
_CUT_ATTRIBUTE = re.compile(r"""\s([\w-]{1,200})=["']""")
_STRING_FLAG = re.compile(r"""\bstring=["'](true|false)["']""")
_WORDS = r"[\w./:-]{1,60}(?:[ \t][\w./:-]{1,60}){0,2}"
_WORDS_BEFORE_JSON = re.compile(rf"{_WORDS}[ \t]*(?=\{{|\[[A-Z_]{{2,30}}\][ \t]*\{{)")
_KEYWORD = re.compile(rf"\b(?:{'|'.join(keyword.kwlist)}|print)\b")  # which may stand before `{` in code
_WORDS_BEFORE_TOKEN = re.compile(
    rf"{_WORDS}\s*(?=```|<[|｜]message[|｜]>|(<[|｜][^<>\s]{{1,60}}>)\s*(?:\1\s*){{0,99}}[^\s<])"
)
_FENCE_END = "\n```"
_RESULT = re.compile(r"response|result|output|observation", re.IGNORECASE)
_NEXT_TURN = re.compile(r"<\|\w{0,9}start\w{0,9}\|>(?!assistant)")
_KEY_TAG = re.compile(r"key|name", re.IGNORECASE)
_NAME_END = re.compile(r"key|name|</(?:tool|function)>", re.IGNORECASE)
_KEY = re.compile(r"\s*([\w.-]{1,200})\s*(?=<)")
_UNCLOSED_END = re.compile(rf"\s*(?=(?:{NAMESPACE})?</(?!\w*param)|(?:{NAMESPACE})?<[|｜])", re.IGNORECASE)
_NAMESPACE_END = re.compile(rf"{NAMESPACE}\Z")
_CODE_END = re.compile(r"\s*(?:<[|｜][^<>\s]{1,60}>|<[^<>\s]{1,60}[|｜]>|</s>|\Z)")
_NAMED = re.compile(r"name|tool|function|action|recipient|type", re.IGNORECASE)
_GIVEN = re.compile(r"(?:arg(?:ument)?s?|kwargs|param(?:eter)?s?|inputs?|payload)$", re.IGNORECASE)
_LINE_TOKEN = re.compile(rf"(?:\A|(?<=\n))[ \t]*(?:{TAG})")
_PROSE = re.compile(r"\s*[A-Za-z']+(?:,? [a-z']+){2,}\b(?! *[=(\[.])")
_STATEMENT = re.compile(r"\s*(?:import|from|for|if|with|def|class|while|try|async|await|del|raise|return|not|print)\b")


def looks_like_prose(code: str) -> bool:
    """Return whether text begins as a sentence does."""
    return _PROSE.match(code, 0, 200) is not None and not _STATEMENT.match(code)


def token_name(token: str, declared: Mapping[str, object]) -> str:
    """Return the declared function that a token names; '' for none."""
    if is_closing(token) or not token.startswith("<"):
        return ""
    plain = name_of(token)
    is_plain = plain in declared and not token.startswith(f"<{plain}=")
    if not is_plain and (found := _ATTRIBUTE.search(token)) and (name := known_name(found[1], declared)):
        return name
    return plain if plain in declared else tagged_interpreter(token, declared)


def tagged_interpreter(token: str, declared: Mapping[str, object]) -> str:
    """Return the function that runs code, for a token with bars that announces code: `<|python_tag|>`."""
    if token[1:2] not in "|｜" or "_tag" not in token:
        return ""
    name = declared_name(name_of(token).partition("_")[0], declared)
    return name if declared.get(name) else ""


class _Reader:
    """One text; `place` is where reading goes on."""

    def __init__(self, text: str, declared: Mapping[str, object], schemas: Mapping[str, Json | None]) -> None:
        self.text, self.declared, self.schemas = text, declared, schemas
        self.place = 0
        self.is_repaired = False
        self.is_framed = False  # a token has come
        self._missing: set[str] = set()  # closing tags that do not come any more

    def read(self) -> Iterator[FunctionCall]:
        """Yield all calls; the text has nothing else."""
        number = 0
        while self._skip(bool(number)):
            if number > MAX_CALLS:  # an answer has no more: see models/base.py
                raise ValueError("too many calls")
            yield from self._calls()
            number += 1

    def _token(self) -> str:
        return token_at(self.text, self.place)

    def _skip(self, has_calls: bool) -> bool:
        """Go to the next call; return whether there is one."""
        while self.place < len(self.text):
            token = self._token()
            if not token and (
                found := next(filter(None, (each.match(self.text, self.place) for each in _PASSED)), None)
            ):
                self.place, self.is_framed = found.end(), self.is_framed or found.re is LABEL
                continue
            if not token or self._names(token):
                return not (has_calls and may_become_token(self.text, self.place))  # cut at the end
            self.is_framed = True
            is_result = not is_closing(token) and _RESULT.search(token)
            if has_calls and (is_result or _NEXT_TURN.match(self.text, self.place)):
                return False  # of what the model made up
            self.place += len(token)
        return False

    def _names(self, token: str) -> str:
        """Return the function that the token at this place names; '' if it announces a call that has a name."""
        name = token_name(token, self.declared)
        if not name or not tagged_interpreter(token, self.declared):
            return name
        rest = self.text[self.place + len(token) : self.place + len(token) + MAX_NAME_CHARS].lstrip()
        word = WORD.match(rest)
        is_announced = rest[:1] in ("{", "[", "<") or (
            word and known_name(word[0], self.declared) and rest[word.end() :][:1] == "("
        )
        return "" if is_announced else name

    def _calls(self) -> list[FunctionCall]:
        """Read a call, or several in one JSON value."""
        words = 0
        while words <= MAX_WORDS:
            token, first = self._token(), self.text[self.place : self.place + 1]
            if token and (name := self._names(token)):
                self.place += len(token)
                self.is_framed = True
                return [FunctionCall(name, self._arguments(name, token))]
            if token:
                self.place = self._space(self.place + len(token))
                self.is_framed = True
            elif list_match := PYTHON_LIST.match(self.text, self.place):
                self.place = list_match.end()
            elif first in ("{", "["):
                return self._of_json()
            elif word := WORD.match(self.text, self.place):
                self.place = word.end() + self.text.startswith(">{", word.end())
                if name := known_name(word[0], self.declared):
                    prompt = ">>>" if self.text.startswith(">>>", word.start() - 3) else ""
                    return [FunctionCall(name, self._arguments(name, prompt))]
                words += 1
                self._pass_space()
            else:
                break
        raise ValueError("not a call")

    def _pass_space(self) -> None:
        """Pass the space behind a word of the frame.

        Raises:
            ValueError: a plain word follows it, or JSON that no token announces: this is prose.
        """
        behind = self._space(self.place)
        following = WORD.match(self.text, behind)
        is_prose = not self.is_framed and self.text[behind : behind + 1] in ("{", "[")
        if following:
            may_name = self.is_framed and "\n" in self.text[self.place : behind]
            is_named = may_name and known_name(following[0], self.declared)
            is_prose = not is_named and not re.search(r"[=:]", following[0])
        if behind > self.place and is_prose:
            raise ValueError("prose")
        self.place = behind

    def _space(self, place: int) -> int:
        while self.text[place : place + 1].isspace() or self.text.startswith("\\n", place):  # also escaped twice
            place += 1 + (self.text[place] == "\\")
        return place

    # The arguments behind a name.

    def _arguments(self, name: str, token: str) -> str:
        types, has_frame, start = types_of(self.schemas.get(name)), bool(token), self.place
        last = "<|"  # the token before bare code
        has_words = False  # right before this place
        if attributes := self._attributes(token, types):
            return json_of(attributes)
        while True:
            behind = self._space(self.place)
            first, found = self.text[behind : behind + 1], TOKEN.match(self.text, behind)
            if first == "{" and (value := self._object(name, behind)) is not None:
                return value
            if first == "{" and has_words:
                raise ValueError("words before what is not arguments")
            if first == "(" and behind == self.place and not token:
                return self._python(name)
            if found and not found[0].startswith("</") and self._key_of(found[0], types):
                self.place = behind
                return json_of(self._tagged(types))
            if (behind == len(self.text) and has_frame) or (found and self._ends(found[0], token)):
                return "{}"
            if passed := found or FENCE_LINE.match(self.text, behind):
                self.place, has_frame = passed.end(), has_frame or found is not None
                last = "```" if not found else last if is_closing(found[0]) else found[0]
                has_frame, has_words = has_frame or self.is_framed, False
            elif self._passes_words(behind, is_head=not token and last != "```"):
                has_words = True
            else:
                last = last if self.place > start and (last == "```" or not token) else token
                return self._code(name, last, behind if has_frame else -1)

    def _attributes(self, token: str, types: Types) -> dict[str, Any]:
        if any(key in types for key in _CUT_ATTRIBUTE.findall(_ATTRIBUTES.sub("", token))):
            raise ValueError("an attribute without an end")
        return {key: _value(text, types[key]) for key, _, text in _ATTRIBUTES.findall(token) if key in types}

    def _ends(self, token: str, head: str) -> bool:
        """Return whether a token ends the call; one of a key or a name between tags does not."""
        return is_closing(token) and bool(head or not _NAME_END.search(token))

    def _passes_words(self, place: int, *, is_head: bool) -> bool:
        """Pass words between name and arguments, such as `json` or an id; in a head, a token may follow them."""
        words = _WORDS_BEFORE_JSON.match(self.text, place)
        words = None if words and _KEYWORD.search(words[0]) else words
        words = words or (_WORDS_BEFORE_TOKEN.match(self.text, place) if is_head else None)
        self.place = words.end() if words else self.place
        return words is not None

    def _object(self, name: str, place: int) -> str | None:
        """Return the JSON object at a place, or in the call that it is; None for text that may be code."""
        reader = LooseReader(self.text, place)
        try:
            value = reader.value()
        except (ValueError, RecursionError):
            if not self.is_framed:
                raise
            return None
        if not isinstance(value, dict):
            return None
        self.place, self.is_repaired = reader.place, self.is_repaired or reader.is_repaired
        if value.get("name") == name:
            with suppress(ValueError):
                return next(self._of_object(value, 0)).arguments
        return self.text[place : reader.place].strip() if not reader.is_repaired else json_of(value)

    def _python(self, name: str) -> str:
        reader = LooseReader(self.text, self.place)
        found = reader.value()
        self.place = reader.place
        given = found.pop("", None) if isinstance(found, dict) else None
        if isinstance(given, dict) and not found:
            return json_of(given)
        if isinstance(given, str) and not found and self.declared[name]:
            return json_of({"code": given})
        if given is not None:
            raise ValueError("an argument without a name")
        return json_of(found)

    def _code(self, name: str, token: str, place: int) -> str:
        """Read bare code up to the token that ends it, or to the end of the text."""
        if not self.declared[name] or place < 0 or not token:
            raise ValueError("not arguments")
        if token.startswith(">") and "\n" not in self.text[self.place : place]:
            raise ValueError("prose")
        closing = f"</{name_of(token)}>" if token[1:2] not in "|｜>" else ""
        closing = _FENCE_END if token.startswith("`") else closing
        if closing and (end := self._find(closing, place)) < 0:
            raise ValueError("code without an end")
        if not closing:
            found = _CODE_END.search(self.text, place)
            end = found.start() if found else len(self.text)
            if "=" in token and not self.text[end:].strip():
                raise ValueError("code without an end")
        code = self.text[self.place if closing else place : end].strip("\n")
        last = code.rstrip().rpartition("\n")[2]
        is_prose = looks_like_prose(code) or (last[-1:] in ".!?" and looks_like_prose(last))
        if not code.strip() or is_prose or _has_frame(code):
            raise ValueError("prose")
        if code.lstrip()[:1] in ("{", "[") and not self.text[end:].strip():
            raise ValueError("arguments that were cut")
        self.place = end
        return code

    def _find(self, closing: str, place: int) -> int:
        found = -1 if closing in self._missing else self.text.find(closing, place)
        if found < 0:
            self._missing.add(closing)
        return found

    # Tags around keys and values.

    def _key_of(self, token: str, types: Types) -> str:
        """Return the parameter that a tag names; the tag itself if the parameter stands behind it; '' for none."""
        if is_closing(token) or token[:1] != "<":
            return ""
        if found := _ATTRIBUTE.search(token):
            return found[1] if found[1] in types or found[1] not in self.declared else ""
        name = name_of(token)
        is_key = "arg" in name and _KEY.match(self.text, self._space(self.place) + len(token))
        return name if name in types else token if is_key or _KEY_TAG.search(name) else ""

    def _tagged(self, types: Types) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while (token := self._token()) and (key := self._key_of(token, types)):
            self.place += len(token)
            flag = _STRING_FLAG.search(token)
            if key == token:
                key, token = self._written_key()
            if key in found:
                raise ValueError("a key that comes twice")
            kinds = {"true": frozenset(("string",)), "false": _JSON_TYPES}.get(flag[1]) if flag else types.get(key)
            found[key] = _value(self._text_of(token), kinds or frozenset())
            self.place = self._space(self.place)
            while (token := self._token()) and not token.startswith("<"):  # of another template
                self.place = self._space(self.place + len(token))
        return found

    def _written_key(self) -> tuple[str, str]:
        """Read a key that stands between tags, and the tag that opens its value."""
        key = _KEY.match(self.text, self.place)
        if key is None:
            raise ValueError("a tag without a key")
        self.place = key.end()
        for _ in range(4):
            token = self._token()
            self.place = self._space(self.place + len(token))
            if "type" in name_of(token):  # of the value
                self._text_of(token)
                self.place = self._space(self.place)
            elif token and not is_closing(token):
                return key[1], token
        raise ValueError("a key without a value")

    def _text_of(self, token: str) -> str:
        """Return the text up to the tag that closes this one."""
        while self.text.startswith(token, self.place):  # it comes twice
            self.place += len(token)
        name = re.split(r"[\s=>]", token[1:].lstrip(), maxsplit=1)[0]  # with its prefix
        start, closing = self.place, f"</{name}>"
        end = self._find(closing, start)
        if end < 0 and name.endswith("name"):  # the tag was written as one word
            end = self._find(closing := f"</{name.removesuffix('name')}>", start)
        if end >= 0:
            self.place = end + len(closing)
        elif (found := _UNCLOSED_END.search(self.text, start)) is not None:
            end = self.place = found.start()
            self.is_repaired = True
        else:
            raise ValueError("a parameter without an end")
        text = _NAMESPACE_END.sub("", self.text[start:end])
        inside = text.strip().removeprefix("<![CDATA[")
        return text if inside == text.strip() else inside.removesuffix("]]>")

    # Calls in JSON.

    def _of_json(self) -> list[FunctionCall]:
        reader = LooseReader(self.text, self.place)
        value = reader.value()
        self.place, self.is_repaired = reader.place, self.is_repaired or reader.is_repaired
        calls = list(self._calls_of(value))
        if not calls:
            raise ValueError("not a call")
        return calls

    def _calls_of(self, value: Any, depth: int = 0) -> Iterator[FunctionCall]:
        if depth > 4 or not isinstance(value, (dict, list)):
            raise ValueError("not a call")
        for each in value if isinstance(value, list) else [value]:
            yield from self._of_object(each, depth)

    def _of_object(self, value: Any, depth: int) -> Iterator[FunctionCall]:
        if not isinstance(value, dict) or "description" in value:  # of a function, which is no call of it
            raise ValueError("not a call")
        inner = [
            (key, each) for key, each in value.items() if isinstance(each, (dict, list)) and not _GIVEN.search(key)
        ]
        if len(inner) == 1 and all(isinstance(each, str | None) for key, each in value.items() if key != inner[0][0]):
            key, each = inner[0]
            if len(value) == 1 and isinstance(each, dict) and key in self.declared:
                yield FunctionCall(key, json_of(each))
                return
            if re.search(r"call|function|tool", key):
                yield from self._calls_of(each, depth + 1)
                return
        names = {
            known_name(each, self.declared): key
            for key, each in value.items()
            if isinstance(each, str) and _NAMED.search(key) and not _GIVEN.search(key)
        }
        names.pop("", None)
        written = [key for key in value if key in ("name", "tool_name")]
        if len(names) != 1 or len(written) > 1:
            raise ValueError("a call of another function")
        ((name, key),) = names.items()
        yield FunctionCall(name, self._given(value, key, types_of(self.schemas.get(name))))

    def _given(self, value: dict[str, Any], key: str, types: Types) -> str:
        given = [each for other, each in value.items() if _GIVEN.search(other)]
        if not given:
            rest = {other: each for other, each in value.items() if other != key}
            if not rest or not types.keys() >= rest.keys():
                raise ValueError("not a call")
            return json_of(rest)
        if len(given) != 1 or not (given[0] is None or isinstance(given[0], (dict, str))):
            raise ValueError("not a call")
        return given[0] if isinstance(given[0], str) else json_of(given[0] or {})


def _has_frame(code: str) -> bool:
    """Return whether a tag begins a line outside of strings, or ends the text: code has none there."""
    if CELL_MAGIC.match(code):  # `%%html`
        return False
    place, outside = 0, []
    for part in filter(lambda part: part.kind == "string", parts(code)):
        outside.append(code[place : part.start])
        place = part.end
    outside.append(code[place:])
    text = '"'.join(outside).rstrip()
    return bool(_LINE_TOKEN.search(text)) or token_before(text, len(text))[:1] == "<"


def _value(text: str, types: frozenset[str]) -> Any:
    """Return a value that stands between tags: text, without the line breaks next to its tags, or JSON by its types."""
    text = text.removeprefix("\n").removesuffix("\n")
    if not types or "string" in types or not types & _JSON_TYPES:
        return text
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text  # the tool reports the error


def types_of(schema: Json | None) -> Types:
    """Return the JSON types of a function's parameters."""
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


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def calls_in(
    text: str, declared: Mapping[str, object], schemas: Mapping[str, Json | None] = MappingProxyType({})
) -> tuple[FunctionCall, ...]:
    """Return the calls of a text that consists only of calls of declared functions, else ().

    `declared` are the functions, with whether they run code; `schemas` are those of their parameters, by which text
    between tags becomes JSON.
    """
    return calls_after(text, declared, schemas).calls


def calls_after(
    text: str, declared: Mapping[str, object], schemas: Mapping[str, Json | None], before: str = ""
) -> ReadCalls:
    """Read a text as calls, unless the text before announces an example."""
    if not text.strip() or _EXAMPLE.search(before[-200:]):
        return ReadCalls(())
    reader = _Reader(text, declared, schemas)
    try:
        return ReadCalls(tuple(reader.read()), reader.is_repaired)
    except (ValueError, RecursionError):
        return ReadCalls(())
