"""Findings of lint runs, kept in the cache folder, so that tables can show them without running anything."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kernelwright.datasets._findings import LintFinding
from kernelwright.datasets._lint import lint_findings, lint_payload, lint_static
from kernelwright.errors import MachineError
from kernelwright.files import write_whole
from kernelwright.records import DeviceClass, Problem, sha256_text

NOT_LINTED = LintFinding(
    rule="not-linted",
    severity="warning",
    message="the lint has only read this problem; 'kernelwright problems lint P' runs it",
)
_HERE = Path(__file__).parent
_RULE_MODULES = ("_lint_worker.py", "_lint_trace.py", "runtime.py")


class LintRecords:
    """Findings of lint runs, keyed by the contents of the problem, of the variant that ran, and of the lint rules.

    After a change of any of these, the problem counts as never run. A missing or damaged record is ignored. If the
    folder cannot be written, nothing is kept.

    Args:
        cache_dir: kernelwright's cache folder; created when first needed.
    """

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir / "lint"

    def get(self, problem: Problem, device_class: DeviceClass = "cpu") -> tuple[LintFinding, ...] | None:
        """The findings of the last run, or None if there was no run."""
        try:
            record = json.loads(self._path(problem, device_class).read_text(encoding="utf-8"))
            return lint_findings(record if isinstance(record, dict) else {})
        except (OSError, ValueError, RecursionError, MachineError):
            return None

    def put(self, problem: Problem, findings: Sequence[LintFinding], device_class: DeviceClass = "cpu") -> None:
        """Store the findings of a run, in place of those of an earlier one."""
        path = self._path(problem, device_class)
        text = json.dumps({"problem": problem.id, "findings": [finding.model_dump() for finding in findings]})
        with suppress(OSError):
            write_whole(path, text)

    def known(self, problem: Problem, device_class: DeviceClass = "cpu") -> tuple[LintFinding, ...]:
        """All findings known without running anything: those of the text, and those of the last run.

        If there was no run, the finding ``not-linted`` says so. Otherwise the problem would seem clean.
        """
        ran = self.get(problem, device_class)
        return (*lint_static(problem), *((NOT_LINTED,) if ran is None else ran))

    def _path(self, problem: Problem, device_class: DeviceClass) -> Path:
        what = json.dumps([_rules(), lint_payload(problem, device_class)], sort_keys=True)
        return self._folder / f"{sha256_text(what)}.json"


@functools.cache
def _rules() -> str:
    """The hash of the code that runs in the worker."""
    return sha256_text(b"\0".join((_HERE / name).read_bytes() for name in _RULE_MODULES))
