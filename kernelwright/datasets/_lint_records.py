"""What runs of the lint found, kept in the cache folder, so that tables can name it without running anything."""

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
    """Findings of runs by content: of the problem, of the variant that ran, and of the rules themselves.

    What changes any of these makes the problem one that was never run. A record that is missing or damaged counts as
    none, and a folder that cannot be written keeps none.

    Args:
        cache_dir: kernelwright's cache folder; made when it is first needed.
    """

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir / "lint"

    def get(self, problem: Problem, device_class: DeviceClass = "cpu") -> tuple[LintFinding, ...] | None:
        """What the last run of the lint found; None where there was none."""
        try:
            record = json.loads(self._path(problem, device_class).read_text(encoding="utf-8"))
            return lint_findings(record if isinstance(record, dict) else {})
        except (OSError, ValueError, RecursionError, MachineError):
            return None

    def put(self, problem: Problem, findings: Sequence[LintFinding], device_class: DeviceClass = "cpu") -> None:
        """Keep what a run of the lint found, in place of what an earlier one did."""
        path = self._path(problem, device_class)
        text = json.dumps({"problem": problem.id, "findings": [finding.model_dump() for finding in findings]})
        with suppress(OSError):
            write_whole(path, text)

    def known(self, problem: Problem, device_class: DeviceClass = "cpu") -> tuple[LintFinding, ...]:
        """All that is known without running anything: what the text shows, and what the last run found.

        Where there was no run, the finding ``not-linted`` says so: nobody is to take the problem for a clean one.
        """
        ran = self.get(problem, device_class)
        return (*lint_static(problem), *((NOT_LINTED,) if ran is None else ran))

    def _path(self, problem: Problem, device_class: DeviceClass) -> Path:
        what = json.dumps([_rules(), lint_payload(problem, device_class)], sort_keys=True)
        return self._folder / f"{sha256_text(what)}.json"


@functools.cache
def _rules() -> str:
    """The hash of what runs in the worker."""
    return sha256_text(b"\0".join((_HERE / name).read_bytes() for name in _RULE_MODULES))
