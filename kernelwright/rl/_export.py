"""Exports training data from a store into a folder that appears whole or not at all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from kernelwright import __version__
from kernelwright.records import Backend, Problem, Record
from kernelwright.rl._card import CARD, ExportReport, Told, card_of, public_facts
from kernelwright.rl._columns import COLUMNS, KINDS, Kind, type_in_words
from kernelwright.rl._curate import Curation, Kept, Key, balanced
from kernelwright.rl._decontaminate import Contamination, EvaluationSet, evaluation_set
from kernelwright.rl._evidence import Evidence, Judged, evidence_of, is_held_out, problems_in
from kernelwright.rl._licences import UNKNOWN, licence_of
from kernelwright.rl._rows import RowMaker
from kernelwright.rl._scrub import reveals
from kernelwright.rl._trajectories import trajectories
from kernelwright.rl._writers import Format, RowFiles, check_tools, described, fresh_folder

if TYPE_CHECKING:
    from kernelwright.store import Store

__all__ = ["ExportPlan", "ExportReport", "export_dataset"]

MANIFEST: Final = "manifest.json"
TRAIN: Final = "train"
HELD_OUT: Final = "held_out"


class ExportPlan(Record):
    """What to export.

    Attributes:
        kinds: kinds of data; each has its own files.
        formats: file formats. Each file is written in all of them, with equal rows.
        backends: languages of kernels to export; empty for all. ``prompts`` has a row for each of them, or if empty,
            for each language in which the problem was tried.
        held_out: share of problems, from 0 to 1, in a split of their own, chosen by the hash of their ids.
        curate: ``concur`` keeps few, fast and briefly explained kernels in ``sft``, see
            :mod:`kernelwright.rl._curate`. The next four settings are for it.
        min_speedup: least lower bound of the speedup over eager.
        best_share: share of the remaining kernels to keep in each environment, the fastest, from 0 to 1.
        per_problem: number of the remaining kernels to keep of a problem and language, with the shortest reasoning.
        balance: most kernels of a category, as a multiple of the median of all categories.
        decontaminate: suites, files and folders whose problems, and similar ones, are left out.
        threshold: similarity from which a problem is left out, from 0 to 1.
        licences: licences of problems to export (SPDX names, or ``unknown``); empty for all.
        include_checked: also take kernels that were found right in an environment that cannot time.
        most_pairs: most ``preferences`` of each problem, language and environment.
    """

    kinds: tuple[Kind, ...] = KINDS
    formats: tuple[Format, ...] = ("parquet", "jsonl")
    backends: tuple[Backend, ...] = ()
    held_out: float = Field(default=0.0, ge=0.0, lt=1.0)
    curate: Literal["none", "concur"] = "none"
    min_speedup: float = Field(default=1.0, ge=0.0)
    best_share: float = Field(default=0.5, gt=0.0, le=1.0)
    per_problem: int = Field(default=1, ge=1)
    balance: float = Field(default=2.0, gt=0.0)
    decontaminate: tuple[str, ...] = ()
    threshold: float = Field(default=0.9, gt=0.0, le=1.0)
    licences: tuple[str, ...] = ()
    include_checked: bool = False
    most_pairs: int = Field(default=100, ge=1)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return (TRAIN, HELD_OUT) if self.held_out else (TRAIN,)


def export_dataset(
    store: Store, folder: Path, plan: ExportPlan | None = None, *, suite_dirs: Sequence[Path] = ()
) -> ExportReport:
    """Write a data set with its manifest and card into a new or empty folder.

    One problem at a time is in memory. Equal stores and plans give equal bytes.

    Args:
        suite_dirs: folders to search by name for suites that are kept out.

    Raises:
        UsageError: the folder is not empty or cannot be written, or an evaluation suite does not exist.
        MissingToolError: parquet is asked for, and pyarrow is not installed.
    """
    plan = plan or ExportPlan()
    if "parquet" in plan.formats:
        check_tools()
    kept_out = evaluation_set(plan.decontaminate, plan.threshold, suite_dirs)
    with fresh_folder(folder) as made:
        return _Export(store, plan, kept_out).write(made)


_COUNTED: Final = ("status", "backend", "category", "licence")
_UNCONFIRMED: Final = "sft: not right and confirmed"


class _Export:
    """One export."""

    def __init__(self, store: Store, plan: ExportPlan, kept_out: EvaluationSet) -> None:
        self._store = store
        self._plan = plan
        self._kept_out = kept_out
        self._dropped: Counter[str] = Counter()
        self._tallies: dict[Kind, dict[str, Counter[str]]] = {
            kind: {by: Counter() for by in _COUNTED} for kind in plan.kinds
        }
        self._environments: set[str] = set()
        self._contaminated: list[Contamination] = []
        self._indices = {split: count() for split in plan.splits}
        self._maker = RowMaker(
            store,
            include_checked=plan.include_checked,
            most_pairs=plan.most_pairs,
            shown=kept_out.shown,
            sent_prompts=kept_out.allowed,
            dropped=self._dropped,
        )

    def write(self, folder: Path) -> ExportReport:
        """Write all files, the manifest last."""
        plan = self._plan
        wanted = [problem.id for problem in problems_in(self._store) if self._may_be_given(problem)]
        kept = self._curated(wanted)
        with RowFiles(folder, plan.kinds, plan.splits, plan.formats) as files:
            for name in wanted:
                self._write_problem(files, self._evidence(name), kept)
        report = self._report(files)
        told = Told(plan.model_dump(mode="json") | {"decontaminate": [*map(_name, plan.decontaminate)]}, plan.splits)
        (folder / CARD).write_text(card_of(report, told), encoding="utf-8", newline="\n")
        report = report.model_copy(update={"files": (*report.files, described(folder, CARD))})
        (folder / MANIFEST).write_text(_manifest(report, told), encoding="utf-8", newline="\n")
        return report

    # ----------------------------------------------------------------------------------------- what is chosen

    def _may_be_given(self, problem: Problem) -> bool:
        """Whether anything about a problem may be exported. If not, the reason is counted."""
        if self._plan.licences and licence_of(problem.suite) not in self._plan.licences:
            self._dropped["problem: another licence"] += 1
            return False
        if reveals(problem.source):
            self._dropped["problem: its source names a place on a machine, or a key"] += 1
            return False
        found = self._kept_out.contaminated(problem.id, problem.source)
        if found is not None:
            self._dropped["problem: too similar to one of the evaluation"] += 1
            self._contaminated.append(found)
        return found is None

    def _evidence(self, name: str) -> Evidence:
        return evidence_of(self._store, self._store.problem(name), self._plan.backends)

    def _curated(self, wanted: Sequence[str]) -> frozenset[Key] | None:
        """The rows of ``sft`` that curation keeps; None without curation. Reads each problem an extra time."""
        plan = self._plan
        if plan.curate == "none" or "sft" not in plan.kinds:
            return None
        rules = Curation(plan.min_speedup, plan.best_share, plan.per_problem)
        kept: list[Kept] = []
        for name in wanted:
            evidence = self._evidence(name)
            good = [one for one in self._maker.good(evidence) if self._maker.can_be_given(one)]
            kept += rules.of(evidence, good, self._dropped)
        return balanced(kept, plan.balance, self._dropped)

    # ---------------------------------------------------------------------------------------------- writing

    def _write_problem(self, files: RowFiles, evidence: Evidence, kept: frozenset[Key] | None) -> None:
        split = HELD_OUT if is_held_out(evidence.problem.id, self._plan.held_out) else TRAIN
        for kind in self._plan.kinds:
            for row in self._rows(kind, evidence, split, kept):
                files.write(kind, split, row)
                self._count(kind, row)

    def _rows(
        self, kind: Kind, evidence: Evidence, split: str, kept: frozenset[Key] | None
    ) -> Iterator[dict[str, Any]]:
        if kind == "sft":
            return self._maker.triples(evidence, self._for_sft(evidence, kept))
        if kind == "preferences":
            return self._maker.pairs(evidence)
        if kind == "trajectories":
            return trajectories(self._store, evidence, self._kept_out.allowed)
        backends = self._plan.backends or evidence.backends or ("cpp",)
        return self._maker.prompts(evidence, backends, split, self._indices[split])

    def _for_sft(self, evidence: Evidence, kept: frozenset[Key] | None) -> list[Judged]:
        good = self._maker.good(evidence)
        if len(good) < len(evidence.judged):
            self._dropped[_UNCONFIRMED] += len(evidence.judged) - len(good)
        if kept is None:
            return good
        return [one for one in good if Key(evidence.problem.id, one.environment.id, one.sha256) in kept]

    def _count(self, kind: Kind, row: dict[str, Any]) -> None:
        tally = self._tallies[kind]
        for by in ("backend", "category", "licence"):
            tally[by][row[by]] += 1
        if kind == "trajectories":
            tally["status"].update(step["status"] for step in row["steps"])
            self._environments.update(step["environment"] for step in row["steps"])
            return
        if kind != "prompts":
            tally["status"][row["rejected_status" if kind == "preferences" else "status"]] += 1
        if row["environment"]:
            self._environments.add(row["environment"])

    # -------------------------------------------------------------------------------------------- reporting

    def _report(self, files: RowFiles) -> ExportReport:
        counts: dict[str, dict[str, int]] = {}
        for (kind, split), rows in files.counts.items():
            counts.setdefault(kind, {})[split] = rows
        return ExportReport(
            files=tuple(files.files()),
            counts=counts,
            tallies={
                kind: {by: dict(sorted(counted.items())) for by, counted in tally.items()}
                for kind, tally in self._tallies.items()
            },
            dropped=dict(sorted(self._dropped.items())),
            contaminated=tuple(self._contaminated),
            environments=tuple(self._store.environment(name) for name in sorted(self._environments)),
            warnings=tuple(self._warnings()),
        )

    def _warnings(self) -> Iterator[str]:
        unknown = max((tally["licence"][UNKNOWN] for tally in self._tallies.values()), default=0)
        if unknown:
            yield (
                "the licence of some references is unknown: find out before you give them away, or export with "
                "--licences"
            )
        if not self._plan.decontaminate:
            yield "nothing was kept out: what models are evaluated on may be among the problems (--decontaminate)"
        if self._plan.include_checked:
            yield "some kernels were found right and never timed (checked_only)"


def _name(wanted: str) -> str:
    """A suite's name, or the last part of a path. The rest of a path is private."""
    return Path(wanted).name


def _manifest(report: ExportReport, told: Told) -> str:
    """The manifest as JSON: all facts on an export that a program may need."""
    schema = {
        kind: {name: {"type": type_in_words(column.type), "what": column.what} for name, column in columns.items()}
        for kind, columns in COLUMNS.items()
        if kind in report.counts
    }
    found = report.model_dump(mode="json", exclude={"environments"})
    places = {one.id: public_facts(one) for one in report.environments}
    whole = {
        "kernelwright": __version__,
        "settings": told.settings,
        **found,
        "environments": places,
        "schema": schema,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
