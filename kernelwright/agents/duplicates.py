"""Detection of kernels that were judged already: candidates with the same program or the same machine code.

Two candidates are the same program if their Python has the same syntax tree and the C, C++ or CUDA inside it the same
tokens, with the values of their knobs inserted. They then differ only in comments, docstrings and layout. They are the
same machine code if the Python around the compiled sources is the same and the compiler's output is the same. They may
then differ in names, the order of declarations, pragmas, and compiler options without effect. Arguments for the
compiler alone (options, macros, and constants that are read only for these) do not count as Python around the sources.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from kernelwright import inline
from kernelwright.agents.roles import Attempt
from kernelwright.records import Candidate, KnobValue, sha256_text

MACHINE_CODE = "machine_code"  # key of the fingerprint in an attempt's action

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
    """The attempt that a candidate repeats, and what is the same in both."""

    attempt: Attempt
    same: Literal["file", "program", "machine code"]


def find_twin(candidate: Candidate, attempts: Sequence[Attempt], machine_code: str | None = None) -> Twin | None:
    """The first attempt with the same kernel, or None.

    Args:
        attempts: their actions hold the fingerprints of their machine code, if known.
        machine_code: the candidate's fingerprint, to compare with those of the attempts; an empty one matches none.
            With None, programs are compared instead.
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


def codes_of_alike(candidate: Candidate, attempts: Sequence[Attempt]) -> frozenset[str]:
    """The fingerprints of the attempts with the same Python: with one of these, the candidate is a twin of theirs."""
    surroundings = surroundings_of(candidate)
    known = (attempt for attempt in attempts if attempt.purpose == "search" and attempt.action.get(MACHINE_CODE))
    return frozenset(a.action[MACHINE_CODE] for a in known if surroundings_of(a.candidate) == surroundings)


def program_of(candidate: Candidate) -> str:
    """Hash of a candidate's program, independent of comments, docstrings and layout."""
    return _hashed(candidate.backend, candidate.source, tuple(sorted(candidate.knobs.items())), False)


def surroundings_of(candidate: Candidate) -> str:
    """Hash of a candidate's Python, without the C, C++ or CUDA inside it."""
    return _hashed(candidate.backend, candidate.source, tuple(sorted(candidate.knobs.items())), True)


_TOKEN = re.compile(r"\w+|[^\w\s]")


def code_size(candidate: Candidate) -> int:
    """A measure of the amount of a candidate's code, without comments, layout and names. Use it only to compare."""
    return len(_TOKEN.findall(_plain(candidate.source, tuple(sorted(candidate.knobs.items())), False)))


@functools.lru_cache(maxsize=2048)
def _hashed(backend: str, source: str, knobs: tuple[tuple[str, KnobValue], ...], without_c: bool) -> str:
    return sha256_text(f"{backend}\n{_plain(source, knobs, without_c)}")


def _plain(source: str, knobs: tuple[tuple[str, KnobValue], ...], without_c: bool) -> str:
    try:
        tree = ast.parse(inline.apply_knobs(source, dict(knobs)))
        if without_c:
            _drop_what_the_compiler_is_told(tree)
        return ast.dump(_Plain(without_c).visit(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return f"{source}\n{knobs}"  # source that cannot be parsed equals only itself


_BUILDERS = frozenset({"cpp", "cuda"})  # the functions of kernelwright.inline
_TOLD = frozenset({"flags", "defines"})  # their arguments that go to the compiler alone
_HARMLESS: tuple[type[ast.AST], ...] = (
    *(ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Dict, ast.JoinedStr, ast.FormattedValue),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.operator, ast.unaryop),
    *(ast.boolop, ast.cmpop, ast.expr_context),
)


def _drop_what_the_compiler_is_told(tree: ast.Module) -> None:
    """Remove compiler options and macros, and then the module's constants that nothing reads any more."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name_called(node) in _BUILDERS:
            node.keywords = [word for word in node.keywords if word.arg not in _TOLD or not _is_harmless(word.value)]
    while unread := [statement for statement in tree.body if _is_unread(statement, tree)]:
        tree.body = [statement for statement in tree.body if statement not in unread]


def _name_called(call: ast.Call) -> str:
    function = call.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _is_harmless(value: ast.expr) -> bool:
    """Whether evaluating an expression has no side effects."""
    return all(isinstance(node, _HARMLESS) for node in ast.walk(value))


def _is_unread(statement: ast.stmt, tree: ast.Module) -> bool:
    """Whether a statement of the module sets constants that nothing in it reads."""
    if not isinstance(statement, ast.Assign) or not _is_harmless(statement.value):
        return False
    names = {target.id if isinstance(target, ast.Name) else "" for target in statement.targets}
    read = (n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return "" not in names and names.isdisjoint(read)


class _Plain(ast.NodeTransformer):
    """Drops statements that are only a constant, and replaces compiled sources by their tokens or an empty string."""

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
    """The tokens of C, C++ or CUDA, separated by one blank; preprocessor directives are on lines of their own."""
    out: list[str] = []
    for match in _C_TOKEN.finditer(source):
        if match.lastgroup == "directive":
            plain = _C_COMMENT.sub(lambda found: found[1] or " ", match[0].replace("\\\n", " "))
            out.append(f"\n#{' '.join(plain.split('#', 1)[1].split())}\n")
        elif match.lastgroup != "comment":
            out.append(match[0])
    return " ".join(out)
