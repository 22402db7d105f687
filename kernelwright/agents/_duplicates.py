"""Kernels that were judged already: the same program in other words, or other words for the same machine code.

Two candidates are the same program where their Python has one syntax tree and the C, C++ or CUDA inside of it the same
tokens, with the values of their knobs in place; nothing but comments, docstrings and layout lies between them. They are
the same machine code where the Python around the compiled sources is the same and the compiler made the same of them:
renamed variables, reordered declarations, pragmas that do nothing.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from kernelwright import inline
from kernelwright.agents._roles import Attempt
from kernelwright.records import Candidate, KnobValue, sha256_text

MACHINE_CODE = "machine_code"  # the key of an attempt's action under which its fingerprint stands

_C_TOKEN = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))
      | (?P<directive>^[ \t]*\#(?:\\\n|/\*.*?\*/|[^\n])*)
      | (?P<text>(?:u8|[uUL])?R"(?P<end>[^\s()\\]{0,16})\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
      | (?P<word>\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*|[^\W\d]\w*)
      | (?P<sign><<=|>>=|<=>|->\*|\.\.\.|::|\+\+|--|->|\.\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|[^\w\s])""",
    re.X | re.S | re.M,
)
_C_COMMENT = re.compile(r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')|//[^\n]*|/\*.*?(?:\*/|\Z)""", re.S)


class Twin(NamedTuple):
    """The attempt that a candidate repeats, and in what they are the same."""

    attempt: Attempt
    same: Literal["file", "program", "machine code"]


def find_twin(candidate: Candidate, attempts: Sequence[Attempt], machine_code: str | None = None) -> Twin | None:
    """The first attempt that was the same kernel; None where there is none.

    Args:
        attempts: with the fingerprints of their machine code in their actions, where these are known.
        machine_code: the candidate's fingerprint: looked for among the attempts', where it is not empty. None looks for
            the same program alone.
    """
    known = [attempt for attempt in attempts if attempt.purpose == "search"]
    for attempt in known:
        if attempt.candidate.sha256 == candidate.sha256:
            return Twin(attempt, "file")
    if machine_code is None:
        program = program_of(candidate)
        return next((Twin(a, "program") for a in known if program_of(a.candidate) == program), None)
    if not machine_code:
        return None
    alike = (attempt for attempt in known if attempt.action.get(MACHINE_CODE) == machine_code)
    surroundings = surroundings_of(candidate)
    return next((Twin(a, "machine code") for a in alike if surroundings_of(a.candidate) == surroundings), None)


def program_of(candidate: Candidate) -> str:
    """Hash of what a candidate does, whatever its comments, its docstrings and its layout are."""
    return _hashed(candidate.backend, candidate.source, tuple(sorted(candidate.knobs.items())), False)


def surroundings_of(candidate: Candidate) -> str:
    """Hash of a candidate's Python, whatever stands in the C, C++ or CUDA inside of it."""
    return _hashed(candidate.backend, candidate.source, tuple(sorted(candidate.knobs.items())), True)


@functools.lru_cache(maxsize=2048)
def _hashed(backend: str, source: str, knobs: tuple[tuple[str, KnobValue], ...], without_c: bool) -> str:
    try:
        tree = ast.parse(inline.apply_knobs(source, dict(knobs)))
        text = ast.dump(_Plain(without_c).visit(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        text = f"{source}\n{knobs}"  # what cannot be read is like nothing but itself
    return sha256_text(f"{backend}\n{text}")


class _Plain(ast.NodeTransformer):
    """Drops statements that are only a constant, and writes compiled sources as their tokens, or leaves them out."""

    def __init__(self, without_c: bool) -> None:
        self._without_c = without_c

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, [statement for statement in statements if not _says_nothing(statement)])
        return super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, str) or not _is_c(node.value):
            return node
        return ast.Constant("" if self._without_c else c_tokens(node.value))


def _says_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_c(text: str) -> bool:
    return "#include" in text or ("{" in text and ("\n" in text or ";" in text))


def c_tokens(source: str) -> str:
    """The tokens of C, C++ or CUDA with one blank between them; the preprocessor's directives on lines of their own."""
    out: list[str] = []
    for match in _C_TOKEN.finditer(source):
        if match.lastgroup == "directive":
            plain = _C_COMMENT.sub(lambda found: found[1] or " ", match[0].replace("\\\n", " "))
            out.append(f"\n#{' '.join(plain.split('#', 1)[1].split())}\n")
        elif match.lastgroup != "comment":
            out.append(match[0])
    return " ".join(out)
