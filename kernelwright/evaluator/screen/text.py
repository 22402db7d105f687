"""C, C++ and CUDA text as tokens, as a compiler sees it after it has removed line splices and comments.

A comment about fork() is not a call, and code after a ``//`` inside a string is still code. Nothing here fails: unknown
characters become marks, and an unclosed literal ends with its line or with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Token(NamedTuple):
    """kind: ``word``, ``string`` or ``char`` (text without quotes), ``directive`` (a preprocessor line), ``mark``."""

    kind: str
    text: str
    line: int


# An unclosed literal ends with its line or the text. The tails match anything that stops the loops before them. If a
# pattern could fail there, it would try again at each quote, and hostile text would take hours.
_RAW = r'(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\((?P<rawbody>.*?)(?:\)(?P=fence)"|\Z)'
_STRING = r'"(?P<body>(?:\\.|[^"\\\n])*)(?:"|(?=\n)|\\?\Z)'
_CHAR = r"'(?:\\.|[^'\\\n])*(?:'|(?=\n)|\\?\Z)"
_UNNAMED_STRING = _STRING.replace("?P<body>", "?:")
_TOKEN = re.compile(
    rf"""
      (?P<blank>\s+ | //[^\n]* | /\*.*?(?:\*/|\Z))
    | (?P<raw>{_RAW})
    | (?P<string>(?:u8|[uUL])?{_STRING})
    | (?P<char>(?:u8|[uUL])?{_CHAR})
    | (?P<number>\.?[0-9](?:[eEpP][+-]|'(?=[0-9a-zA-Z])|[\w.])*)
    | (?P<word>[A-Za-z_$][\w$]*)
    | (?P<mark>->|::|\#\#|%:%:|.)
    """,
    re.VERBOSE | re.DOTALL,
)
# A directive ends with its line; comments inside of it may hold further lines.
_DIRECTIVE = re.compile(
    rf"""[^\S\n]*(?:\#|%:)(?:[^\n/"']+|{_UNNAMED_STRING}|{_CHAR}|/\*.*?(?:\*/|\Z)|/(?![/*]))*""", re.DOTALL
)
_DIRECTIVE_COMMENT = re.compile(rf"({_UNNAMED_STRING}|{_CHAR})|/\*.*?(?:\*/|\Z)", re.DOTALL)
_SPLICE = re.compile(r"\\[ \t\v\f]*\r?\n")  # GCC allows blanks between the two
_RAW_OR_SPLICE = re.compile(rf"{_RAW}|(?P<splice>{_SPLICE.pattern})", re.DOTALL)
_TRIGRAPH = re.compile(r"\?\?([=/'()!<>-])")
_TRIGRAPHS = dict(zip("=/'()!<>-", "#\\^[]|{}~", strict=True))
_COMPILED = re.compile(r"^[^\S\n]*(?:#|%:|\?\?=|\.(?:version|target)\b)|\b(?:asm|__asm__|__asm)\b[\s\w]{0,40}\(", re.M)


def looks_like_source(text: str) -> bool:
    """Whether a candidate's string may be source text for a compiler or an assembler."""
    return ("{" in text and ";" in text) or _COMPILED.search(text) is not None


class Reading(NamedTuple):
    """Source text without line splices. splices: the position of each in the text, in order."""

    text: str
    splices: tuple[int, ...] = ()


def readings(text: str) -> Iterator[Reading]:
    """Yield the text in each way that a compiler may read it; nearly always there is only one.

    Raw strings keep their line splices, but a raw string can only be told by reading all text before it. GCC replaces
    trigraphs in its ISO modes before C++17.
    """
    first = _joined(text, _SPLICE)
    yield first
    if first.splices and 'R"' in text:
        second = _joined(text, _RAW_OR_SPLICE)
        if second != first:
            yield second
    if _TRIGRAPH.search(text):
        yield _joined(_TRIGRAPH.sub(lambda match: _TRIGRAPHS[match[1]], text), _SPLICE)


def _joined(text: str, pattern: re.Pattern[str]) -> Reading:
    if "\\" not in text:
        return Reading(text)
    parts: list[str] = []
    splices: list[int] = []
    length = start = 0
    for match in pattern.finditer(text):
        if not match.group().startswith("\\"):
            continue
        parts.append(text[start : match.start()])
        length += len(parts[-1])
        splices.append(length)
        start = match.end()
    parts.append(text[start:])
    return Reading("".join(parts), tuple(splices))


def tokenize(reading: Reading) -> Iterator[Token]:
    """Tokens of C++ source, comments and blanks left out."""
    text, splices = reading
    position, line, fresh, passed = 0, 1, True, 0
    while position < len(text):
        directive = _DIRECTIVE.match(text, position) if fresh else None
        match = directive or _TOKEN.match(text, position)
        if match is None:  # pragma: no cover - the last alternative takes any character
            return
        while passed < len(splices) and splices[passed] <= position:
            passed += 1
        kind, whole = match.lastgroup, match.group()
        newlines = whole.count("\n")
        if directive:
            plain = _DIRECTIVE_COMMENT.sub(lambda found: found[1] or " ", whole)
            yield Token("directive", plain.strip(), line + passed)
        elif kind == "word":
            yield Token("word", whole, line + passed)
        elif kind in ("string", "raw"):
            yield Token("string", match["body" if kind == "string" else "rawbody"], line + passed)
        elif kind == "char":
            yield Token("char", whole.partition("'")[2][:-1], line + passed)
        elif kind != "blank":
            yield Token("mark", whole, line + passed)
        fresh = directive is None and kind == "blank" and (fresh or newlines > 0)
        line += newlines
        position = match.end()


def split_directive(text: str) -> tuple[str, str]:
    """Split a directive into name and argument: ``#  include"x"`` into include and "x"."""
    body = text.removeprefix("#").removeprefix("%:").lstrip()
    name = re.match(r"[a-z_]*", body)
    length = name.end() if name else 0
    return body[:length], body[length:].strip()


_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f", "a": "\a", "b": "\b"}


def unescape(text: str) -> str:
    """The value of a string literal: its text with all escapes replaced."""

    def value(match: re.Match[str]) -> str:
        if match[1] or match[2]:
            return chr(int(match[1], 16) & 0xFF if match[1] else int(match[2], 8) & 0xFF)
        return _CONTROL.get(match[3], match[3])

    return _ESCAPE.sub(value, text)


def closing_brackets(tokens: Sequence[Token]) -> dict[int, int]:
    """Index of the closing parenthesis for each opening one that is closed."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for i, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text == "(":
            opened.append(i)
        elif token.text == ")" and opened:
            pairs[opened.pop()] = i
    return pairs
