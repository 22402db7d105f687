"""CUDA C++ as plain C++ for the emulator: launches become calls, dynamic shared memory a pointer. All else stays.

Works on tokens: a ``<<<`` in a comment or a string is not a launch. Text that is not understood stays as it is, and the
compiler refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["rewrite"]

_TOKEN = re.compile(
    r"""(?P<blank>(?:\s|\\\n)+|//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))
      | (?P<define>\#[ \t]*define\b(?:\\\n|[^\n])*)
      | (?P<directive>\#(?:\\\n|[^\n])*)
      | (?P<raw>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?(?:\)(?P=fence)"|\Z))
      | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*(?:"|(?=\n)|\\?\Z))
      | (?P<char>'(?:\\.|[^'\\\n])*(?:'|(?=\n)|\\?\Z))
      | (?P<number>\.?\d(?:'?[\w.])*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<launch><<<)
      | (?P<mark>::|.)""",
    re.X | re.S,
)
_MOST_SPECIAL = 400  # launches and extern declarations
_MOST_DEFINES = 500
_OPENING = {"(": ")", "[": "]", "{": "}"}
_CLOSING = {close: open_ for open_, close in _OPENING.items()}
# Names that the headers of the C++ library use as well.
_RENAMED = {"__noinline__": "__attribute__((noinline))", "assert": "kw_assert", "clock": "clock64"}
_CALLED = frozenset(("assert", "clock"))  # renamed where they are called
_SPACES = frozenset(("namespace", "struct", "class", "union", "enum"))
_ATTRIBUTES = frozenset(("alignas", "__align__", "__attribute__", "__declspec"))
_BEFORE_A_VALUE = frozenset(("(", ")", ",", "=", "return", "{", ";"))
_RUNTIME_LAUNCHES = frozenset(("cudaLaunchKernel", "cudaLaunchCooperativeKernel"))


class _Token(NamedTuple):
    kind: str
    text: str


class TooComplexError(ValueError):
    """A text with more launches or deeper macros than real kernels have."""


def rewrite(source: str) -> str:
    """The text with every kernel launch and every ``extern __shared__`` array made plain C++.

    Raises:
        TooComplexError: reading the text would take too long.
    """
    tokens = _tokenize(source)
    special = sum(token.kind == "launch" or token.text in ("extern", *_RUNTIME_LAUNCHES) for token in tokens)
    if special > _MOST_SPECIAL or source.count("define") > _MOST_DEFINES:
        raise TooComplexError(f"more than {_MOST_SPECIAL} launches or extern declarations, or {_MOST_DEFINES} macros")
    try:
        return "".join(token.text for token in _rewritten(tokens))
    except (RecursionError, IndexError, StopIteration) as error:
        raise TooComplexError("its launches cannot be read") from error


def _tokenize(text: str) -> list[_Token]:
    return [_Token(match.lastgroup or "mark", match.group()) for match in _TOKEN.finditer(text)]


def _rewritten(tokens: list[_Token]) -> list[_Token]:
    out: list[_Token] = []
    arrays: set[str] = set()
    i, bound = 0, ""
    while i < len(tokens):
        token = tokens[i]
        if token.kind == "define":
            name = re.match(r"#[ \t]*define\s+\w+(?:\([^)]*\))?", token.text)
            body = token.text[name.end() :] if name else ""
            head = token.text[: len(token.text) - len(body)]
            out.append(_Token("directive", head + rewrite(body)))
        elif token.text == "__launch_bounds__" and (argument := _first_argument(tokens, i)) is not None:
            bound, i = argument
            continue
        elif bound and token.text in ("{", ";") and token.kind == "mark":
            out.append(_Token("mark", f"{{ kw_launch_bound({bound});" if token.text == "{" else ";"))
            bound = ""
        elif token.text == "extern" and (shared := _dynamic_array(tokens, i)) is not None:
            (inside, outside, array), i = shared
            arrays.add(array)
            out.append(_Token("word", inside if _inside_a_function(out) else outside))
            continue
        elif token.kind == "launch" and (launch := _launch(out, tokens, i)) is not None:
            text, callee_at, i = launch
            del out[callee_at:]
            out.append(_Token("word", text))
            continue
        elif token.text == "&" and arrays and _is_address_of(arrays, out, tokens, i):
            pass  # the array has become a pointer
        elif token.text == "static" and _is_shared(tokens, i + 1):
            pass  # shared memory is static by itself
        elif token.text in _RENAMED and token.kind == "word":
            after = _solid(tokens, i + 1)
            called = after < len(tokens) and tokens[after].text == "("
            is_member = bool(out) and out[-1].text in (".", ">", "::")
            renamed = not is_member and (called or token.text not in _CALLED)
            out.append(_Token("word", _RENAMED[token.text]) if renamed else token)
        elif token.text in _RUNTIME_LAUNCHES:
            out.append(token)
            i = _uncast(tokens, i + 1, out)
            continue
        else:
            out.append(token)
        i += 1
    return out


def _first_argument(tokens: Sequence[_Token], i: int) -> tuple[str, int] | None:
    """The first argument of the call whose name is at ``i``, and the index after the call; None if it is not a call."""
    opening = _solid(tokens, i + 1)
    if opening >= len(tokens) or tokens[opening].text != "(":
        return None
    close = at = _closing(tokens, opening)
    depth = 0
    for k in range(opening + 1, close):
        text = tokens[k].text if tokens[k].kind == "mark" else ""
        depth += (text in _OPENING) - (text in _CLOSING)
        if text == "," and depth == 0:
            at = k
            break
    return "".join(token.text for token in tokens[opening + 1 : at]).strip(), close + 1


def _is_shared(tokens: Sequence[_Token], i: int) -> bool:
    at = _solid(tokens, i)
    return at < len(tokens) and tokens[at].text == "__shared__"


def _solid(tokens: Sequence[_Token], i: int) -> int:
    """The first index from ``i`` on that is neither blank nor comment."""
    while i < len(tokens) and tokens[i].kind == "blank":
        i += 1
    return i


# ------------------------------------------------------------------------------------------ dynamic shared memory


def _dynamic_array(tokens: Sequence[_Token], start: int) -> tuple[tuple[str, str, str], int] | None:
    """``extern __shared__ T name[];``: its replacement in functions and outside, its name, and the index after it."""
    words: list[str] = []
    i = _solid(tokens, start + 1)
    while i < len(tokens) and tokens[i].text not in ("[", ";", "{", "="):
        if tokens[i].text in ("__align__", "alignas", "__attribute__"):
            i = _closing(tokens, _solid(tokens, i + 1)) + 1
        elif tokens[i].kind != "blank":
            words.append(tokens[i].text)
            i += 1
        else:
            i += 1
    if "__shared__" not in words or i >= len(tokens) or tokens[i].text != "[":
        return None
    end = _solid(tokens, _closing(tokens, i) + 1)
    if end >= len(tokens) or tokens[end].text != ";":
        return None
    name = words[-1]
    kind = " ".join(word for word in words[:-1] if word != "__shared__")
    in_function = f"{kind}* const {name} = static_cast<{kind}*>(kw_dynamic_shared());"
    return (in_function, f"static {in_function}", name), end + 1


def _is_address_of(names: set[str], before: Sequence[_Token], tokens: Sequence[_Token], i: int) -> bool:
    """Whether the ``&`` at ``i`` takes the address of a whole array."""
    last = next((token.text for token in reversed(before) if token.kind != "blank"), "")
    at = _solid(tokens, i + 1)
    after = _solid(tokens, at + 1)
    follows = tokens[after].text if after < len(tokens) else ""
    return last in _BEFORE_A_VALUE and at < len(tokens) and tokens[at].text in names and follows != "["


def _closing(tokens: Sequence[_Token], start: int) -> int:
    """Index of the bracket that closes the one at ``start``, or of the last token if none does."""
    depth = 0
    for i in range(start, len(tokens)):
        if tokens[i].kind != "mark":
            continue
        depth += (tokens[i].text in _OPENING) - (tokens[i].text in _CLOSING)
        if depth == 0:
            return i
    return len(tokens) - 1


def _inside_a_function(before: Sequence[_Token]) -> bool:
    """Whether the text after ``before`` belongs to a function's body."""
    opened: list[bool] = []
    previous = ""
    head: list[str] = []
    for token in before:
        if token.kind in ("blank", "directive"):
            continue
        if token.text == "{":
            bare = _bare(head)
            is_space = not _SPACES.isdisjoint(bare) and "(" not in bare
            opened.append(not is_space and not (head[:1] == ["extern"] and previous.startswith('"')))
            head = []
        elif token.text == "}":
            if opened:
                opened.pop()
            head = []
        elif token.text == ";":
            head = []
        else:
            head.append(token.text)
        previous = token.text
    return any(opened)


def _bare(head: Sequence[str]) -> list[str]:
    """The words of a declaration without attributes and ``template <...>``, in which ``class`` begins no class."""
    kept: list[str] = []
    i = 0
    while i < len(head):
        pair = {"template": "<>"}.get(head[i], "()" if head[i] in _ATTRIBUTES else "")
        if pair and head[i + 1 : i + 2] == [pair[0]]:
            depth = 1
            i += 2
            while i < len(head) and depth:
                depth += (head[i] == pair[0]) - (head[i] == pair[1])
                i += 1
        else:
            kept.append(head[i])
            i += 1
    return kept


# ------------------------------------------------------------------------------------------------------- launches


def _launch(before: Sequence[_Token], tokens: Sequence[_Token], start: int) -> tuple[str, int, int] | None:
    """The launch whose ``<<<`` is at ``start``: new text, index of its callee in ``before``, and the index after it."""
    callee_at = _callee(before)
    if callee_at is None:
        return None
    callee = "".join(token.text for token in before[callee_at:]).strip()
    end = _end_of_configuration(tokens, start + 1)
    if end is None:
        return None
    opening = _solid(tokens, end + 3)
    if opening >= len(tokens) or tokens[opening].text != "(":
        return None
    close = _closing(tokens, opening)
    configuration = "".join(token.text for token in _rewritten(list(tokens[start + 1 : end])))
    arguments = "".join(token.text for token in _rewritten(list(tokens[opening + 1 : close]))).strip()
    name = re.match(r"[\w:]+", callee)
    text = (
        f'kw::launch("{name.group() if name else "kernel"}", kw::most_granted(), false, '
        f"kw::Configuration({configuration}), [=](auto... kw_a) KW_UNWATCHED {{ {callee}(kw_a...); }}"
        f"{', ' + arguments if arguments else ''})"
    )
    return text, callee_at, close + 1


def _end_of_configuration(tokens: Sequence[_Token], i: int) -> int | None:
    """Index of the first of the three ``>`` that end a configuration."""
    while i < len(tokens):
        if tokens[i].text in _OPENING and tokens[i].kind == "mark":
            i = _closing(tokens, i)
        elif [token.text for token in tokens[i : i + 3]] == [">", ">", ">"]:
            after = _solid(tokens, i + 3)
            if after < len(tokens) and tokens[after].text == "(":
                return i
        i += 1
    return None


def _callee(before: Sequence[_Token]) -> int | None:
    """Index where the name before ``<<<`` begins, with its template arguments and its qualifiers, or None."""
    i = len(before) - 1
    while i >= 0 and before[i].kind == "blank":
        i -= 1
    if i >= 0 and before[i].text == ">":
        i = _opening_angle(before, i) - 1
        while i >= 0 and before[i].kind == "blank":
            i -= 1
    if i < 0 or before[i].kind != "word":
        return None
    while i >= 2 and before[i - 1].text == "::" and before[i - 2].kind == "word":
        i -= 2
    if i >= 1 and before[i - 1].text == "::":
        i -= 1
    return i


def _opening_angle(before: Sequence[_Token], end: int) -> int:
    """Index of the ``<`` that the ``>`` at ``end`` closes; parentheses inside are skipped."""
    depth = parentheses = 0
    for i in range(end, -1, -1):
        text = before[i].text if before[i].kind == "mark" else ""
        parentheses += (text == ")") - (text == "(")
        if parentheses == 0:
            depth += (text == ">") - (text == "<")
            if depth == 0 and text == "<":
                return i
    return 0


def _uncast(tokens: Sequence[_Token], i: int, out: list[_Token]) -> int:
    """Leave out the cast of a kernel to ``void*``, because the emulator needs its type. Returns the next index."""
    opening = _solid(tokens, i)
    if opening >= len(tokens) or tokens[opening].text != "(":
        return i
    out.extend(tokens[i : opening + 1])
    at = _solid(tokens, opening + 1)
    cast = re.match(r"\(\s*(?:const\s+)?void\s*\*\s*\)", "".join(token.text for token in tokens[at : at + 8]))
    if cast:
        return _closing(tokens, at) + 1
    if tokens[at].text in ("reinterpret_cast", "static_cast"):
        begin = next(k for k in range(at, len(tokens)) if tokens[k].text == "(")
        end = _closing(tokens, begin)
        out.extend(_rewritten(list(tokens[begin + 1 : end])))
        return end + 1
    return at
