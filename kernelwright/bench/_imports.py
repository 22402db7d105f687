"""Imports benches from submissions to KernelBench's leaderboard, our own rows, and solutions of FlashInfer-Trace.

``_kernelbench`` reads KernelBench's run folders. Results that a file claims are not trusted: ``bench evaluate`` judges
imported kernels.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from kernelwright.bench._exchange import Imported, left_out, samples_of_run, unreadable_in
from kernelwright.bench._flashinfer import forward_arguments
from kernelwright.bench._kernelbench import KernelBenchRun, Slot, writable
from kernelwright.errors import InvalidReferenceError, MissingToolError, UsageError
from kernelwright.records import Backend, Candidate, Problem
from kernelwright.store import Sample

Form = Literal["kernelbench", "leaderboard", "rows", "flashinfer"]
FORMS: tuple[Form, ...] = get_args(Form)

_ROWS = ("samples.jsonl", "samples.parquet")
_SUBMITTED = re.compile(r"level_(\d{1,3})_problem_(\d{1,6})_sample_(\d{1,6})")
_MAX_BYTES = 1 << 30
_AS_EXPORTED = "rows are as 'bench export' writes them"
_MODEL_NEW = """


import torch


class ModelNew(torch.nn.Module):
    def forward(self, {names}):
        return run({named})
"""


def form_of(path: Path) -> Form:
    """The form of a file or a folder, by its name and its content; by default a run folder of KernelBench."""
    if path.suffix in (".jsonl", ".parquet") or any((path / name).is_file() for name in _ROWS):
        return "rows"
    if path.suffix == ".json":
        return "leaderboard"
    return "flashinfer" if (path / "solutions").is_dir() else "kernelbench"


def samples_of_submission(path: Path, level: Callable[[int], Sequence[Problem]], backend: Backend) -> Imported:
    """The kernels of all levels in a submission to KernelBench's leaderboard.

    Args:
        level: returns the problems of a level.

    Raises:
        UsageError: the file is not a submission, or names a problem that its level lacks.
    """
    data = _json(_text(path), str(path))
    kernels = data.get("kernels") if isinstance(data, dict) else None
    if not isinstance(kernels, dict) or not kernels:
        raise UsageError(f"{path} is no submission: it has no kernels", hint="its form: {metadata, kernels}")
    by_level: dict[int, dict[Slot, str]] = {}
    for name, source in kernels.items():
        named = _SUBMITTED.fullmatch(name)
        if named is None or not isinstance(source, str):
            raise UsageError(
                f"{path}: {name[:60]!r} is no kernel", hint="kernels are named like level_1_problem_2_sample_0"
            )
        by_level.setdefault(int(named[1]), {})[Slot(int(named[2]), int(named[3]))] = source
    parts = [
        samples_of_run(KernelBenchRun(number, own, {}), level(number), backend)
        for number, own in sorted(by_level.items())
    ]
    return Imported(
        [problem for part in parts for problem in part.problems],
        [sample for part in parts for sample in part.samples],
        [line for part in parts for line in part.left_out],
    )


def samples_of_rows(path: Path, find: Callable[[str], Problem], backend: Backend) -> Imported:
    """The kernels in rows that ``bench export --format jsonl`` or ``parquet`` wrote, from a file or its folder.

    Rows about a problem whose file breaks the contract are left out.

    Args:
        find: returns the problem of an id.

    Raises:
        UsageError: a row does not name its sample, is there twice, or is about another text of its problem.
        MissingToolError: the rows are parquet, and pyarrow is not installed.
    """
    problems: dict[str, Problem] = {}
    samples: dict[tuple[str, int], Sample] = {}
    broken: dict[str, InvalidReferenceError] = {}
    unread: Counter[str] = Counter()
    for number, row in enumerate(_rows(path), 1):
        where = f"row {number} of {path}"
        asked, sample, source = (row.get(name) for name in ("problem", "sample", "source"))
        if not isinstance(asked, str) or not isinstance(sample, int) or isinstance(sample, bool) or sample < 0:
            raise UsageError(f"{where} names no problem, or no sample by its number", hint=_AS_EXPORTED)
        if "source" not in row or not isinstance(source, str | None):
            raise UsageError(f"{where} has no source", hint=_AS_EXPORTED)
        if asked not in problems and asked not in broken:
            try:
                problems[asked] = find(asked)
            except InvalidReferenceError as error:
                broken[asked] = error
        if asked in broken:
            unread[asked] += 1
            continue
        problem = problems[asked]
        if row.get("problem_sha256") not in (None, problem.sha256):
            raise UsageError(
                f"{where} is about another text of {asked}", hint="give the suite that it was made with as --suite-dir"
            )
        if (problem.id, sample) in samples:
            raise UsageError(f"{where}: sample {sample} of {problem.id} is there twice", hint="leave one of them out")
        said = row.get("backend")
        candidate = None
        if source is not None:
            language = next((known for known in get_args(Backend) if known == said), backend)
            candidate = _given(problem, source, language, author=str(row.get("author") or "imported"))
        reason = "" if candidate else str(row.get("reason") or "the row has no kernel")
        samples[problem.id, sample] = Sample(
            problem=problem.id, number=sample, candidate=candidate, reason=reason, claimed=_claimed(row, where)
        )
    told = [left_out(asked, count, broken[asked].message) for asked, count in unread.items()]
    if not samples:
        raise UsageError(told[0] if told else f"{path} has no row", hint=_AS_EXPORTED)
    return Imported(list({problem.id: problem for problem in problems.values()}.values()), list(samples.values()), told)


def samples_of_solutions(folder: Path, problems: Sequence[Problem], backend: Backend) -> Imported:
    """The solutions of a FlashInfer-Trace dataset. Those of each definition are numbered in the order of their files.

    A solution that is not a single Python file with a function that returns its outputs becomes a sample without a
    candidate.

    Args:
        problems: the dataset's definitions.

    Raises:
        UsageError: the dataset has no solution to any of them.
    """
    by_name = {problem.name: problem for problem in problems}
    broken = {file.id.rpartition("/")[2]: file for file in unreadable_in(problems)}
    unread: Counter[str] = Counter()
    counts: dict[str, int] = {}
    samples = []
    for path in sorted((folder / "solutions").rglob("*.json")):
        solution = _json(_text(path), str(path))
        named = str(solution.get("definition")) if isinstance(solution, dict) else ""
        unread[named] += named in broken
        problem = by_name.get(named)
        if problem is None:
            continue
        number = counts[problem.id] = counts.get(problem.id, -1) + 1
        source, reason = _as_module(solution, problem)
        candidate = None
        if source:
            candidate = _given(problem, source, backend, author=str(solution.get("author") or "imported"))
        samples.append(Sample(problem=problem.id, number=number, candidate=candidate, reason=reason))
    if not samples:
        raise UsageError(f"{folder} has no solution to a definition of its own", hint="give a FlashInfer-Trace dataset")
    told = [left_out(broken[name].id, count, broken[name].error.message) for name, count in unread.items() if count]
    return Imported([problem for problem in problems if problem.id in counts], samples, told)


def _as_module(solution: Mapping[str, Any], problem: Problem) -> tuple[str, str]:
    """A solution as a candidate's file, and an empty reason; or an empty file, and why it cannot be one."""
    spec, sources = solution.get("spec"), solution.get("sources")
    if not isinstance(spec, dict) or not isinstance(sources, list) or len(sources) != 1:
        return "", "it is not one file"
    (file,) = sources
    path, _, function = str(spec.get("entry_point")).partition("::")
    content = file.get("content") if isinstance(file, dict) else None
    if not isinstance(content, str) or path != file.get("path") or function != "run" or not path.endswith(".py"):
        return "", "its entry point is no function run of its Python file"
    if spec.get("destination_passing_style"):
        return "", "it writes to tensors that it is given, and returns nothing"
    if re.search(r"^class ModelNew\b", content, re.MULTILINE):
        return content, ""
    names = forward_arguments(problem)
    return content.rstrip() + _MODEL_NEW.format(names=", ".join(names), named=", ".join(f"{n}={n}" for n in names)), ""


def _given(problem: Problem, source: str, backend: Backend, *, author: str) -> Candidate:
    from kernelwright.campaign import language_of

    made = Candidate(problem_id=problem.id, source=source, backend=backend, operator="given", author=author)
    return made.model_copy(update={"backend": language_of(made)})


def _claimed(row: Mapping[str, Any], where: str) -> Mapping[str, Any] | None:
    text = row.get("claimed")
    if text is None:
        return None
    claimed = _json(text, where) if isinstance(text, str) else text
    if not isinstance(claimed, dict):
        raise UsageError(f"{where} has a claim that is no object", hint="leave it out, or give it as JSON")
    return writable(claimed)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    file = next((path / name for name in _ROWS if (path / name).is_file()), path)
    if file.suffix == ".parquet":
        yield from _parquet(file)
        return
    for number, line in enumerate(_text(file).split("\n"), 1):
        if line.strip():
            row = _json(line, f"line {number} of {file}")
            if not isinstance(row, dict):
                raise UsageError(f"line {number} of {file} is no object", hint="one JSON object on each line")
            yield row


def _parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingToolError("parquet needs the package pyarrow", hint="pip install 'kernelwright[data]'") from None
    try:
        table = pyarrow.parquet.read_table(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(
            f"{file} cannot be read: {' '.join(str(error).split())[:200]}", hint="give a parquet file"
        ) from None
    yield from table.to_pylist()


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageError(f"{path} is larger than {_MAX_BYTES >> 20} MB", hint="split it")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="give a file in UTF-8 that exists") from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is no valid JSON: {error}", hint="mend or leave out that file") from None
