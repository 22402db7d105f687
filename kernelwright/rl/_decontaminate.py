"""Keeps problems that models are evaluated on out of training data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kernelwright.datasets import load_suite, suites
from kernelwright.errors import UsageError
from kernelwright.prompts import Exemplar, exemplar_names, read_exemplar
from kernelwright.records import Record
from kernelwright.rl._similarity import similarity

__all__ = ["Contamination", "EvaluationProblem", "EvaluationSet", "evaluation_set"]


class EvaluationProblem(NamedTuple):
    """A problem that models are evaluated on."""

    id: str
    source: str


class Contamination(Record):
    """A problem that was left out, the evaluation problem that it matches, and their similarity (from 0 to 1)."""

    problem: str
    match: str
    similarity: float


class EvaluationSet:
    """Problems that may not be trained on.

    Args:
        threshold: similarity from which two problems count as the same.
    """

    def __init__(self, problems: Iterable[EvaluationProblem], threshold: float) -> None:
        self.problems = tuple({problem.source: problem for problem in problems}.values())
        self.threshold = threshold
        self._references = self._spoiled_exemplars()

    def nearest(self, source: str) -> tuple[EvaluationProblem | None, float]:
        """The most similar problem, the first of equals, and its similarity."""
        found: tuple[EvaluationProblem | None, float] = (None, 0.0)
        for problem in self.problems:
            alike = similarity(source, problem.source)
            if alike > found[1]:
                found = problem, alike
        return found

    def contaminated(self, problem_id: str, source: str) -> Contamination | None:
        """The match that keeps a problem out of training; None if it may be trained on."""
        match, alike = self.nearest(source)
        if match is None or alike < self.threshold:
            return None
        return Contamination(problem=problem_id, match=match.id, similarity=round(alike, 4))

    def shown(self, exemplar: Exemplar) -> bool:
        """Whether a prompt may show an exemplar. It may not if its reference matches an evaluation problem."""
        return exemplar.reference.strip() not in self._references

    def allowed(self, prompt: str) -> bool:
        """Whether a prompt that was sent shows no forbidden exemplar."""
        return not any(reference in prompt for reference in self._references)

    def _spoiled_exemplars(self) -> frozenset[str]:
        if not self.problems:
            return frozenset()
        exemplars = [read_exemplar(backend, category) for backend, category in exemplar_names()]
        references = {exemplar.problem: exemplar.reference.strip() for exemplar in exemplars}
        return frozenset(
            reference for problem, reference in references.items() if self.nearest(problem)[1] >= self.threshold
        )


def evaluation_set(wanted: Sequence[str], threshold: float, suite_dirs: Sequence[Path] = ()) -> EvaluationSet:
    """The evaluation problems of suites, files and folders.

    Args:
        wanted: names of suites, ``.py`` problem files, and folders that hold a suite or ``.py`` problem files.
        suite_dirs: folders to search for suites by name.

    Raises:
        UsageError: nothing has such a name, or a folder holds no problem.
    """
    known = suites(suite_dirs)
    return EvaluationSet((problem for name in wanted for problem in _problems(name, known, suite_dirs)), threshold)


def _problems(name: str, known: Sequence[str], suite_dirs: Sequence[Path]) -> Iterator[EvaluationProblem]:
    if name in known:
        return _of_suite(name, suite_dirs)
    path = Path(name)
    if path.suffix == ".py" and path.is_file():
        return iter([EvaluationProblem(path.name, _text(path))])
    if path.is_dir():
        return _of_folder(path)
    raise UsageError(
        f"no suite, problem file or folder is called {name}",
        hint=f"suites are {', '.join(known)}; others need --suite-dir",
    )


def _of_suite(name: str, suite_dirs: Sequence[Path]) -> Iterator[EvaluationProblem]:
    loaded = load_suite(name, suite_dirs=suite_dirs)
    yield from (EvaluationProblem(problem.id, problem.source) for problem in loaded)
    # others evaluate on files that break our contract too
    yield from (EvaluationProblem(one.id, _text(Path(one.path))) for one in loaded.broken if one.path.endswith(".py"))


def _of_folder(folder: Path) -> Iterator[EvaluationProblem]:
    try:
        own = sorted(set(suites((folder,))) - set(suites()))
    except UsageError:  # no loader knows it: plain problem files
        own = []
    for name in own:
        yield from _of_suite(name, (folder,))
    files = [] if own else sorted(folder.rglob("*.py"))
    if not own and not files:
        raise UsageError(f"{folder} holds no problem", hint="give a folder with a suite, or with .py files of problems")
    yield from (EvaluationProblem(f"{folder.name}/{path.relative_to(folder)}", _text(path)) for path in files)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="give a readable UTF-8 text file") from None
