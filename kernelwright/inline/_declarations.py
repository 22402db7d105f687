"""Reads the ``extern "C"`` declarations of C++ source: what each function takes and returns.

It is a small tokenizer, not a C++ parser. It understands comments, strings, attributes, macros without arguments and
aliases. A function that it cannot read is left out: the caller then knows nothing about it, rather than something
wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

__all__ = ["Parameter", "Signature", "parse_kernel", "parse_signatures"]


class Parameter(NamedTuple):
    """One C parameter; ``type`` is canonical ("float", "int64", ...), or the source's own words where unknown.

    ``const`` is True for a pointer to something that the function may only read.
    """

    name: str
    type: str
    pointer: bool
    const: bool = False


class Signature(NamedTuple):
    """One ``extern "C"`` function; ``returns`` is a canonical type or "void"."""

    name: str
    returns: str
    parameters: tuple[Parameter, ...]


_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<directive>\#[^\n]*)
      | (?P<string>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]*)\(.*?\)(?P=fence)" | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
      | (?P<number>\.?\d(?:'?[\w.])*)
      | (?P<char>'(?:\\.|[^'\\\n])+')
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>::|.)""",
    re.X | re.S,
)
_WORD = re.compile(r"[A-Za-z_]\w*\Z")
_QUALIFIERS = frozenset(
    ("const", "volatile", "restrict", "__restrict", "__restrict__", "struct", "class", "enum", "union", "typename")
) | {"static", "inline", "extern", "constexpr", "__inline", "__inline__", "__extension__", "noexcept", "register"}
_BUILTIN_WORDS = frozenset(("unsigned", "signed", "long", "short", "int", "char", "float", "double", "bool", "void"))
_CANONICAL = {f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_CANONICAL |= {"size_t": "uint64", "uintptr_t": "uint64", "ssize_t": "int64", "ptrdiff_t": "int64", "intptr_t": "int64"}
_CANONICAL |= {"float": "float", "double": "double", "bool": "bool", "_Bool": "bool", "void": "void", "char": "char"}
_CANONICAL |= {"_Float16": "float16", "__fp16": "float16", "Half": "float16", "__half": "float16", "half": "float16"}
_CANONICAL |= {"__bf16": "bfloat16", "BFloat16": "bfloat16", "bfloat16_t": "bfloat16"}
_CANONICAL |= {"__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16"}
_CANONICAL |= {"complex<float>": "complex64", "complex<double>": "complex128"}
Tokens = list[str]


def parse_signatures(source: str, defines: Mapping[str, str] | None = None) -> dict[str, Signature | None]:
    """The ``extern "C"`` functions of a C++ source by name; None for a name with two different declarations.

    ``defines`` are macros given on the command line (name to replacement). Object-like macros, ``typedef`` and
    ``using`` of the source are followed. Declarations made by function-like macros are not seen.
    """
    macros: dict[str, Tokens] = {}
    tokens = _tokenize(source.replace("\\\n", ""), macros)
    macros.update({name: _tokenize(body, {}) for name, body in (defines or {}).items()})
    tokens = _expand(tokens, macros)
    aliases = _aliases(tokens)
    found: dict[str, Signature | None] = {}
    for declaration in _extern_c(tokens):
        signature = _signature(declaration, aliases)
        if signature is not None:
            known = found.setdefault(signature.name, signature)
            if known is not None and not _same(known, signature):
                found[signature.name] = None
    return found


def parse_kernel(source: str, name: str, defines: Mapping[str, str] | None = None) -> Signature | None:
    """The ``__global__`` function ``name`` of CUDA source; None if it is not found or its declarations differ.

    ``name`` may have template arguments (``"scale<float, 4>"``). They replace the template's parameters.
    """
    macros: dict[str, Tokens] = {}
    tokens = _tokenize(source.replace("\\\n", ""), macros)
    macros.update({key: _tokenize(body, {}) for key, body in (defines or {}).items()})
    tokens = _expand(tokens, macros)
    aliases = _aliases(tokens)
    words = _tokenize(name, {})
    given = _split(words[words.index("<") + 1 : -1]) if "<" in words else []
    wanted = [word for word in (words[: words.index("<")] if "<" in words else words) if _WORD.match(word)][-1:]
    found = []
    for i, token in enumerate(tokens):
        if token != "__global__":
            continue
        head, _ = _head(tokens, i + 1, len(tokens))
        signature = _signature(_plain_head(head), aliases | _template_arguments(tokens, i, given))
        if signature is not None and [signature.name] == wanted:
            found.append(signature)
    if not found or not all(_same(found[0], other) for other in found):
        return None
    return found[0]


def _plain_head(head: Tokens) -> Tokens:
    """The head without the qualifiers that only CUDA has."""
    words: Tokens = []
    i = 0
    while i < len(head):
        if head[i] in ("__launch_bounds__", "__maxnreg__", "__cluster_dims__") and head[i + 1 : i + 2] == ["("]:
            i = _closing(head, i + 1)
        elif head[i] not in ("static", "inline", "__grid_constant__"):
            words.append(head[i])
        i += 1
    return words


def _template_arguments(tokens: Tokens, at: int, given: list[Tokens]) -> dict[str, Tokens]:
    """Map the parameters of the template that ends right before ``at`` to the given arguments."""
    start = at - 1
    while start >= 0 and tokens[start] not in ("template", ";", "}", "{"):
        start -= 1
    if start < 0 or tokens[start] != "template" or tokens[start + 1 : start + 2] != ["<"]:
        return {}
    parameters = _split(tokens[start + 2 : _closing(tokens, start + 1)])
    names = [(part[: part.index("=")] if "=" in part else part)[-1:] for part in parameters]
    return {name[0]: value for name, value in zip(names, given, strict=False) if name}


def _same(a: Signature, b: Signature) -> bool:
    return a.returns == b.returns and [p[1:3] for p in a.parameters] == [p[1:3] for p in b.parameters]


def _tokenize(text: str, macros: dict[str, Tokens]) -> Tokens:
    tokens = []
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "directive":
            definition = re.match(r"#\s*define\s+([A-Za-z_]\w*)(?!\w|\()(.*)", match.group())
            if definition:
                macros[definition[1]] = _tokenize(definition[2], {})
        elif match.lastgroup != "blank":
            tokens.append(match.group())
    return tokens


def _expand(tokens: Tokens, macros: Mapping[str, Tokens], within: frozenset[str] = frozenset()) -> Tokens:
    expanded: Tokens = []
    for token in tokens:
        if token in macros and token not in within:
            expanded += _expand(macros[token], macros, within | {token})
        else:
            expanded.append(token)
    return expanded


def _aliases(tokens: Tokens) -> dict[str, Tokens]:
    aliases: dict[str, Tokens] = {}
    for i, token in enumerate(tokens):
        if token not in ("using", "typedef") or ";" not in tokens[i:]:
            continue
        words = tokens[i + 1 : tokens.index(";", i)]
        if token == "using" and words[1:2] == ["="]:
            aliases[words[0]] = words[2:]
        elif token == "typedef" and words and not {"(", "{", "["} & set(words):
            aliases[words[-1]] = words[:-1]
    return aliases


def _closing(tokens: Tokens, start: int) -> int:
    """Index of the bracket that closes the one at ``start``, or of the last token if no bracket does."""
    opening, depth = tokens[start], 0
    close = {"(": ")", "{": "}", "[": "]", "<": ">"}[opening]
    for i in range(start, len(tokens)):
        depth += (tokens[i] == opening) - (tokens[i] == close)
        if depth == 0:
            return i
    return len(tokens) - 1


def _extern_c(tokens: Tokens) -> Iterator[Tokens]:
    """Heads of all declarations with C linkage: their tokens up to the body or the semicolon."""
    i = 0
    while i + 2 < len(tokens):
        if tokens[i] != "extern" or tokens[i + 1] != '"C"':
            i += 1
        elif tokens[i + 2] == "{":
            end, i = _closing(tokens, i + 2), i + 3
            while i < end:
                head, i = _head(tokens, i, end)
                yield head
            i = end + 1
        else:
            head, i = _head(tokens, i + 2, len(tokens))
            yield head


def _head(tokens: Tokens, start: int, end: int) -> tuple[Tokens, int]:
    i = start
    while i < end and tokens[i] not in (";", "{", "="):
        i = _closing(tokens, i) + 1 if tokens[i] in ("(", "[") else i + 1
    head = tokens[start:i]
    is_function = "(" in head and (i >= end or tokens[i] != "=")
    while i < end and tokens[i] != ";":
        if tokens[i] == "{":
            i = _closing(tokens, i)
            if is_function:
                break
        i += 1
    return (head if is_function else []), i + 1


def _signature(head: Tokens, aliases: Mapping[str, Tokens]) -> Signature | None:
    words: Tokens = []
    i = 0
    while i < len(head):
        if head[i] in ("__attribute__", "alignas", "__declspec") and head[i + 1 : i + 2] == ["("]:
            i = _closing(head, i + 1)
        elif head[i] == "[" and head[i + 1 : i + 2] == ["["]:
            i = _closing(head, i)
        else:
            words.append(head[i])
        i += 1
    if "(" not in words or {"template", "operator", "static"} & set(words):
        return None
    at = words.index("(")
    if at < 2 or not _WORD.match(words[at - 1]):
        return None
    inside = words[at + 1 : _closing(words, at)]
    parameters = [_parameter(part, i, aliases) for i, part in enumerate(_split(inside)) if part not in ([], ["void"])]
    returns = _parameter([*words[: at - 1], "_"], 0, aliases)
    returned = returns.type + ("*" if returns.pointer else "")
    return Signature(words[at - 1], returned, tuple(parameters))


def _split(tokens: Tokens) -> list[Tokens]:
    parts: list[Tokens] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in ("(", "<", "[", "{")) - (token in (")", ">", "]", "}"))
        if token == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _parameter(tokens: Tokens, position: int, aliases: Mapping[str, Tokens]) -> Parameter:
    tokens = tokens[: tokens.index("=")] if "=" in tokens else tokens
    if "(" in tokens:  # a pointer to a function
        return Parameter(f"arg{position}", "void", True)
    pointers = tokens.count("*") + tokens.count("[")
    const = "const" in (tokens[: tokens.index("*")] if "*" in tokens else tokens)
    tokens = tokens[: tokens.index("[")] if "[" in tokens else tokens
    words = [t for t in tokens if t not in _QUALIFIERS and t != "*"]
    words = [w for i, w in enumerate(words) if w != "::" and words[i + 1 : i + 2] != ["::"]]
    if "<" in words:
        end = _closing(words, words.index("<"))
        words = ["".join(words[: end + 1]), *words[end + 1 :]]
    name = words.pop() if len(words) > 1 and words[-1] not in _BUILTIN_WORDS and words[-1] != "&" else f"arg{position}"
    for _ in range(8):
        if len(words) != 1 or words[0] not in aliases:
            break
        target = aliases[words[0]]
        pointers += target.count("*")
        const = "const" in target[: target.index("*")] if "*" in target else const or "const" in target
        words = [t for t in target if t not in _QUALIFIERS and t not in ("*", "::", "std")]
    kind = _canonical(words)
    return Parameter(name, kind if pointers < 2 else "void", pointers > 0, pointers == 1 and const)


def _canonical(words: Tokens) -> str:
    if len(words) == 1 and words[0] in _CANONICAL:
        return _CANONICAL[words[0]]
    kinds = set(words)
    if not words or not kinds <= _BUILTIN_WORDS or kinds & {"float", "double", "bool", "void"}:
        return " ".join(words)
    if "char" in kinds:
        return "int8" if "signed" in kinds else "uint8"
    bits = 64 if "long" in kinds else 16 if "short" in kinds else 32
    return f"{'u' if 'unsigned' in kinds else ''}int{bits}"
