"""The report of an export, and the dataset card that describes its content and its origin."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kernelwright import __version__
from kernelwright.records import Environment, Record
from kernelwright.rl._columns import COLUMNS, KINDS, Kind, features_yaml, type_in_words
from kernelwright.rl._decontaminate import Contamination
from kernelwright.rl._licences import UNKNOWN
from kernelwright.rl._scrub import scrub
from kernelwright.rl._writers import ExportedFile

__all__ = ["CARD", "ExportReport", "Told", "card_of", "public_facts"]

CARD: Final = "README.md"
_SIZES: Final = {"n<1K": 1e3, "1K<n<10K": 1e4, "10K<n<100K": 1e5, "100K<n<1M": 1e6}  # size categories of the hub
_WHAT: Final[Mapping[Kind, str]] = {
    "sft": "Reference, reasoning and kernel, as a conversation: what a model is to be able to answer.",
    "preferences": "Two answers to one question, judged in one environment, of which one is better for certain.",
    "prompts": "One question for each problem and language, for training with the referee as reward.",
    "trajectories": "Whole runs: for each problem of each run, every attempt in order with what it earned.",
}


class ExportReport(Record):
    """What was exported; the manifest holds the same.

    Attributes:
        counts: rows by kind and split.
        tallies: rows by kind, then by property (status, backend, category, licence).
        dropped: how often each rule left something out.
        contaminated: problems left out because they are too similar to an evaluation problem.
        environments: the environments that rows name.
        warnings: notes that users of the data should read first.
    """

    files: tuple[ExportedFile, ...]
    counts: dict[str, dict[str, int]]
    tallies: dict[str, dict[str, dict[str, int]]]
    dropped: dict[str, int]
    contaminated: tuple[Contamination, ...]
    environments: tuple[Environment, ...]
    warnings: tuple[str, ...]


class Told(NamedTuple):
    """Further content of the card and the manifest: the settings of the export, and its splits."""

    settings: Mapping[str, Any]
    splits: Sequence[str]


def public_facts(environment: Environment) -> dict[str, Any]:
    """The published facts about a machine: what times depend on, but nothing that identifies it."""
    found = environment.model_dump(mode="json", exclude={"extra"})
    return {name: scrub(value) if isinstance(value, str) else value for name, value in found.items()}


def card_of(report: ExportReport, told: Told) -> str:
    """The card: its head in YAML as the hub and ``datasets`` read it, then the text."""
    parts = (_head, _kinds, _counts, _origin, _curation, _decontamination, _places, _licences, _limits, _columns)
    return "\n".join(line for part in parts for line in part(report, told)) + "\n"


def _head(report: ExportReport, told: Told) -> Iterator[str]:
    licences = sorted({name for tally in report.tallies.values() for name in tally["licence"]})
    known = [name.lower() for name in licences if name != UNKNOWN]
    rows = sum(sum(counts.values()) for counts in report.counts.values())
    yield "---"
    yield "pretty_name: Kernels judged by kernelwright"
    yield f"license: {known[0] if len(known) == len(licences) == 1 else 'other'}"
    yield "task_categories: [text-generation]"
    yield "tags: [kernels, code, code-generation, performance, pytorch, reinforcement-learning]"
    yield f"size_categories: [{json.dumps(next((label for label, most in _SIZES.items() if rows < most), 'n>1M'))}]"
    form = told.settings["formats"][0]
    filled = {kind: [split for split, rows in report.counts[kind].items() if rows] for kind in _of(report)}
    if any(filled.values()):
        yield "configs:"
    for kind in (kind for kind in _of(report) if filled[kind]):
        yield f"- config_name: {kind}"
        yield "  data_files:"
        for split in filled[kind]:
            yield f"  - split: {split}"
            yield f"    path: {kind}-{split}.{form}"
    if any(filled.values()):
        yield "dataset_info:"
    for kind in (kind for kind in _of(report) if filled[kind]):
        yield f"- config_name: {kind}"
        yield "  features:"
        yield from features_yaml(kind, "  ")
    yield "---"


def _kinds(report: ExportReport, told: Told) -> Iterator[str]:
    yield "\n# Kernels judged by kernelwright\n"
    yield f"Made by `kernelwright rl export` {__version__} out of a store of judged kernels.\n"
    yield f"| name | {' | '.join(told.splits)} | what a row is |"
    yield f"|---|{'---:|' * len(told.splits)}---|"
    for kind in _of(report):
        rows = " | ".join(str(report.counts[kind][split]) for split in told.splits)
        yield f"| `{kind}` | {rows} | {_WHAT[kind]} |"
    yield "\n```python"
    yield "from datasets import load_dataset"
    yield f'\nrows = load_dataset("FOLDER", "{_of(report)[0]}")'
    yield "```"
    forms = told.settings["formats"]
    if len(forms) > 1:
        yield f"\nThat reads the {forms[0]} files; the {forms[1]} files hold the same rows."
    if len(told.splits) > 1:
        yield (
            "\nProblems, not rows, are held out, by the hash of their ids: about "
            f"{told.settings['held_out']:.0%} of them, each with all its variants. "
            "Two problems of the two splits may still be alike."
        )
    yield "A kind without rows has an empty file and no configuration."
    for warning in report.warnings:
        yield f"\n> Note: {warning}."


def _counts(report: ExportReport, told: Told) -> Iterator[str]:
    yield "\n## Counts\n"
    yield "Statuses are those of kernels in `sft`, of rejected kernels in `preferences`, of steps in `trajectories`.\n"
    yield "| name | by | counts |"
    yield "|---|---|---|"
    for kind in _of(report):
        for by, counted in report.tallies[kind].items():
            if counted:
                yield f"| `{kind}` | {by} | {', '.join(f'{name} {number}' for name, number in counted.items())} |"


def _origin(report: ExportReport, told: Told) -> Iterator[str]:
    yield "\n## Where it comes from\n"
    yield (
        "Kernels were written by language models, by search and by people (column `author`), and judged by "
        "kernelwright's referee, which the candidates cannot reach: built and run in a sandbox, checked against "
        "float64 on fresh data in every shape variant, timed in turns with eager PyTorch and torch.compile. A kernel "
        "that stands as an answer (`kernel`, `chosen`) passed, its time was confirmed in further processes, and its "
        "verdict was not withdrawn afterwards. Whatever else was tried is in `rejected` and in `trajectories` only. "
        "Only verdicts on the present text of a problem count. Paths of machines and keys were replaced in prose by "
        "`<path>` and `<secret>`; code that names one was left out, but in `trajectories`, where it was replaced."
    )
    if report.dropped:
        yield "\n| left out by rule | how often |"
        yield "|---|---:|"
        for rule, number in report.dropped.items():
            yield f"| {rule} | {number} |"


def _curation(report: ExportReport, told: Told) -> Iterator[str]:
    yield "\n## Curation\n"
    asked = told.settings
    if asked["curate"] == "none":
        yield "None: `sft` has every confirmed kernel."
        return
    yield (
        "`sft` after ConCuR (arXiv:2510.07356): of the confirmed kernels that come with reasoning, those whose speedup "
        f"over eager is surely {asked['min_speedup']:g} or more (lower end of the 95% interval), of these the fastest "
        f"{asked['best_share']:.0%} of each problem, language and environment, of these the {asked['per_problem']} "
        "with the shortest reasoning of each problem and language; then no category has more than "
        f"{asked['balance']:g} times the median of all categories. The other kinds are not curated."
    )


def _decontamination(report: ExportReport, told: Told) -> Iterator[str]:
    yield "\n## Decontamination\n"
    asked = told.settings
    if not asked["decontaminate"]:
        yield "None was asked for: problems of evaluation suites may be among these."
        return
    yield (
        f"Kept out: {', '.join(asked['decontaminate'])}. A problem was left out, with all that belongs to it, "
        f"where its similarity to one of these was {asked['threshold']:g} or more. Similarity is computed from "
        "syntax trees without names, sizes, docstrings and the order of imports: the smaller of the overlaps of "
        f"operators and of pieces of the tree, from 0 to 1. {len(report.contaminated)} problems were left out; "
        "the manifest lists each with its match. The same function written in other operators is not recognised."
    )


def _places(report: ExportReport, told: Told) -> Iterator[str]:
    yield "\n## Environments\n"
    yield "Times hold for one environment alone; compare none across them.\n"
    yield "| id | device | processor | cores | threads | torch | compiler |"
    yield "|---|---|---|---:|---:|---|---|"
    for one in report.environments:
        told_of = public_facts(one)
        names = ("device", "cpu", "cores", "threads", "torch", "compiler")
        yield f"| `{one.id}` | {' | '.join(str(told_of[name]) for name in names)} |"


def _licences(report: ExportReport, told: Told) -> Iterator[str]:
    yield "\n## Licences\n"
    yield (
        "The column `licence` is that of the reference, known by the name of its suite. Kernels belong to whoever "
        "wrote them or had them written; terms of a model's provider may bind what is trained on its output "
        "(column `author`)."
    )
    if any(UNKNOWN in tally["licence"] for tally in report.tallies.values()):
        yield "\n**Some references have no known licence (`unknown`). Find out before you give them away.**"


def _limits(report: ExportReport, told: Told) -> Iterator[str]:
    yield "\n## Limits\n"
    yield "- A confirmed kernel is right on all that the referee tries, which is no proof."
    yield "- Reasoning is what its author said of a kernel; nobody checked it. It is not a model's hidden reasoning."
    yield "- Where a kernel was an improvement of another one, its prompt is made anew and asks for a new kernel."
    yield "- Kernels are as good as their search: a slow one says little of what is possible."


def _columns(report: ExportReport, told: Told) -> Iterator[str]:
    yield "\n## Columns"
    for kind in _of(report):
        yield f"\n### {kind}\n"
        yield "| column | type | what it holds |"
        yield "|---|---|---|"
        for name, column in COLUMNS[kind].items():
            yield f"| `{name}` | {type_in_words(column.type)} | {column.what} |"


def _of(report: ExportReport) -> list[Kind]:
    return [kind for kind in KINDS if kind in report.counts]
