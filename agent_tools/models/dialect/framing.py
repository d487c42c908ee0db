"""Tokens that frame text: tags of chat templates, and of the markup in which models write calls and reasoning. Pure.

One rule for all of them, whatever template they are of: a token has no white space but between its attributes, stands
between brackets, and says with its name what it frames. So no list of tokens is needed.

    tags        <tool_call>  </invoke>  <function=f>  <invoke name="f">  < invoke name="f">
    with bars   <|channel|>  <tool_call|>  <｜tool▁sep｜>  <|/tool_call|>  <｜｜x｜｜ invoke name="f">
    elements    <|open|>call tool="f"<|sep|>  <|close|>call<|sep|>
    capitals    [TOOL_CALLS]  [/THINK]  [EOS]
    symbols     ◁think▷  ]<]minimax[>[  [e~[  [|endofturn|]  [unused11]  and >>> at the beginning of a line
"""

from __future__ import annotations

import re

MAX_TOKEN = 300  # characters of a token
_BAR = r"[|｜]"
_HEAD = rf"<(?!\|(?:open|close)\|){_BAR}{{0,2}}/?{_BAR}{{0,2}}"
TAG = rf"{_HEAD}(?: (?=\w+ \w+=))?[^\W\d][^<>\n]{{0,250}}>"
_ELEMENT = r"<\|(?:open|close)\|>[^<>\n]{1,250}<\|sep\|>"
_CAPITALS = r"\[/?[A-Z][A-Z0-9]{1,30}(?:[_ ][A-Z0-9]{1,30}){0,4}\]"
NAMESPACE = r"\]<\]\w{1,30}\[>\["
"""What one template writes before each of its tags, closing ones too."""
_ODD = (  # none is Python, which has `[[x]]`, `[~x]` and `[~x[`
    rf"{NAMESPACE}|\]!?\w{{0,9}}~!?\w{{0,9}}[\[\]]|\[!?\w{{1,9}}~!?\w{{0,9}}\[|\[\|/?\w{{1,30}}\|\]"
    r"|\[unused\d{1,4}\]|[\u2190-\u2bff]/?\w{1,30}[\u2190-\u2bff]:?"
)
TOKEN = re.compile(rf"{TAG}|{_ELEMENT}|{_CAPITALS}|{_ODD}|(?<![^\n])>>>(?=\w)")
OPENING = re.compile(
    r"<(?=[|｜/]|[^\W\d]|\Z| (?:\Z|\w+(?: \w+=|\Z)))|\[(?=[/A-Z!~|]|unused|\w{0,5}(?:~|\Z))|\](?=[<~]|\Z)"
    r"|[\u2190-\u2bff](?=[/\w]|\Z)|(?<![^\n])>{1,3}"
)
"""What a token may begin with."""
_PARTIAL = re.compile(
    rf"{_HEAD}(?:[^\W\d][^<>\n]{{0,250}})?|< (?:\w{{1,30}}(?: \w{{0,30}}(?:=[^<>\n]{{0,250}})?)?)?"
    r"|<\|(?:open|close)\|(?:>[^<>\n]{0,250}(?:<\|?s?e?p?\|?)?)?|\[/?(?:[A-Z][A-Z0-9_ ]{0,120})?"
    r"|\[\|/?\w{0,30}\|?|\](?:<(?:\](?:\w{0,30}|\w{1,30}\[>?))?)?|[\[\]]!?\w{0,9}~?!?\w{0,9}|[\u2190-\u2bff]/?\w{0,30}|>{1,3}"
)


def may_become_token(text: str, place: int) -> bool:
    """Return whether the text from this place to its end may be the beginning of a token."""
    return len(text) - place <= MAX_TOKEN and _PARTIAL.fullmatch(text, place) is not None


def token_at(text: str, place: int) -> str:
    """Return the token at a place; '' if there is none."""
    found = TOKEN.match(text, place)
    return found[0] if found else ""


def token_before(text: str, end: int) -> str:
    """Return the token that ends at a place; '' if there is none."""
    opening = {">": "<", "]": "[", "[": "["}.get(text[end - 1 : end], "")
    start = text.rfind(opening, max(0, end - MAX_TOKEN), end - 1) if opening else -1
    if text[start:end] == "<|sep|>":  # of an element
        start = text.rfind(opening, max(0, end - MAX_TOKEN), start)
    return text[start:end] if start >= 0 and TOKEN.fullmatch(text, start, end) else ""


def name_of(token: str) -> str:
    """Return the name that a token has, without brackets and bars; for a tag without its attributes."""
    plain = re.sub(r"^<\|(?:open|close)\|>|<\|sep\|>$", "", token).strip("<>[]|｜/◁▷")
    return re.split(r"[\s=]", plain.lstrip(), maxsplit=1)[0].strip("|｜/:")


def is_closing(token: str) -> bool:
    """Return whether a token ends what another one begins."""
    return token[1:4].strip("|｜").startswith("/") or bool(
        token.startswith("<|close|>") or re.search(r"(?:^|[\W_])(?:end|suffix)(?:$|[\W_])", name_of(token), re.I)
    )


def behind_tokens(text: str, place: int) -> int:
    """Return the place behind all tokens and white space at a place."""
    while place < len(text):
        found = TOKEN.match(text, place)
        if found:
            place = found.end()
        elif text[place].isspace():
            place += 1
        else:
            break
    return place
