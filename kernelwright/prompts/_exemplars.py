"""One short right kernel for each category and backend, each with the small reference that it replaces.

The tests have the referee judge all of them. They show how a kernel of their kind is written. Their operators and
layouts differ from those of the built-in suite, so that none of them solves a problem of it.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Final, Literal

from kernelwright.errors import UsageError
from kernelwright.records import Backend, Problem, Record

__all__ = ["CATEGORIES", "Exemplar", "ExemplarChoice", "exemplar_for", "exemplar_names", "family_of", "read_exemplar"]

CATEGORIES: Final = (
    "pointwise", "reduction", "normalisation", "softmax", "loss", "gemm", "convolution", "pooling", "attention", "scan",
    "irregular",
)  # fmt: skip
ExemplarChoice = Literal["category", "pointwise", "none"]
_FOLDER = Path(__file__).with_name("exemplars")
_BACKENDS: Final[tuple[Backend, ...]] = ("cpp", "cuda", "triton")
# Words in the categories and names of problems; the first that occurs decides: "conv_epilogue" is a convolution.
_WORDS: Final = {
    "attention": "attention",
    "softmax": "softmax",
    "norm": "normalisation",
    "pool": "pooling",
    "conv": "convolution",
    "loss": "loss",
    "scan": "scan",
    "irregular": "irregular",
    "segment": "irregular",
    "scatter": "irregular",
    "gather": "irregular",
    "histogram": "irregular",
    "sparse": "irregular",
    "cumsum": "scan",
    "cumprod": "scan",
    "reduc": "reduction",
    "argm": "reduction",
    "gemm": "gemm",
    "matmul": "gemm",
    "matrix": "gemm",
    "linear": "gemm",
    "block": "gemm",
    "pointwise": "pointwise",
    "elementwise": "pointwise",
    "activation": "pointwise",
}
# The nearest category, for backends that have no exemplar of a category.
_NEAREST: Final = {
    "loss": "reduction",
    "scan": "reduction",
    "irregular": "reduction",
    "pooling": "reduction",
    "attention": "softmax",
    "convolution": "gemm",
}


_KEPT = 256  # entries in each cache below: every round asks for the same problem


class Exemplar(Record):
    """A right kernel. ``problem`` is the whole file of its reference, ``source`` the candidate."""

    category: str
    backend: Backend
    problem: str
    source: str

    @property
    def reference(self) -> str:
        """The reference's class alone."""
        return _class_source(self.problem, "Model")


@functools.cache
def exemplar_names() -> tuple[tuple[Backend, str], ...]:
    """(backend, category) of every exemplar."""
    return tuple((b, path.stem) for b in _BACKENDS for path in sorted(_FOLDER.joinpath(b).glob("*.py")))


@functools.cache
def read_exemplar(backend: Backend, category: str) -> Exemplar:
    """The exemplar of a backend and category.

    Raises:
        UsageError: there is none.
    """
    if (backend, category) not in exemplar_names():
        known = ", ".join(name for b, name in exemplar_names() if b == backend)
        raise UsageError(f"no exemplar of {category!r} for {backend}", hint=f"there are {known}")
    return Exemplar(
        category=category,
        backend=backend,
        problem=_FOLDER.joinpath("references", f"{category}.py").read_text(encoding="utf-8"),
        source=_FOLDER.joinpath(backend, f"{category}.py").read_text(encoding="utf-8"),
    )


def family_of(category: str) -> str | None:
    """The exemplar category of a problem's category, or name; None if it has none of the known words."""
    return next((family for word, family in _WORDS.items() if word in category.lower()), None)


def exemplar_for(problem: Problem, backend: Backend, choice: ExemplarChoice = "category") -> Exemplar | None:
    """The exemplar to show with a problem: of its category, or of the nearest one; None if there is neither.

    Also None if the problem's reference equals the exemplar's own, apart from the names of variables.

    Args:
        choice: ``pointwise`` always chooses that exemplar, ``none`` chooses none.
    """
    if choice == "none":
        return None
    family = choice if choice != "category" else family_of(problem.meta.category) or family_of(problem.name)
    if family is None:
        return None
    known = {category for b, category in exemplar_names() if b == backend}
    category = family if family in known else _NEAREST.get(family, "")
    if category not in known:
        return None
    found = read_exemplar(backend, category)
    return None if _shape(found.reference) == _shape(_class_source(problem.source, "Model")) else found


@functools.lru_cache(maxsize=_KEPT)
def _class_source(source: str, name: str) -> str:
    """The text of a class of a file; the whole file if it lacks the class, or does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    found = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    return (found and ast.get_source_segment(source, found)) or source


@functools.lru_cache(maxsize=_KEPT)
def _shape(source: str) -> str:
    """The tree of a class without names of variables, annotations and docstrings, as text."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = "name"
        elif isinstance(node, ast.arg):
            node.arg, node.annotation = "name", None
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            node.body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return ast.dump(tree)
