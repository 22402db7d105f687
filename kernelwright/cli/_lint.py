"""Mark problems that fail the lint in tables, and list the rules under the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.campaign import RunResult
    from kernelwright.config import Settings
    from kernelwright.datasets import LintFinding
    from kernelwright.records import Problem
    from kernelwright.store import Store

    Findings = Mapping[str, Sequence[LintFinding]]  # by a problem's id

MARK = "!"
CLEAN = "ok"
NOT_RUN = "not-linted: only read, not run so far; 'kernelwright problems lint P' runs a problem in the sandbox"


def known_findings(problems: Iterable[Problem], settings: Settings) -> dict[str, tuple[LintFinding, ...]]:
    """The findings known without running the problems, by problem id; see :meth:`LintRecords.known`."""
    from kernelwright.datasets import LintRecords

    records = LintRecords(settings.cache_dir)
    return {name: records.known(problem) for name, problem in {one.id: one for one in problems}.items()}


def findings_of_rows(store: Store, rows: Sequence[RunResult], run_id: str, settings: Settings) -> Findings:
    """The known findings of a run's problems, in the versions that the run used.

    A row with an invalid reference, or of a file that is not a problem, gets the finding ``invalid-reference``.
    """
    from kernelwright.campaign.runs import problems_of
    from kernelwright.datasets import LintFinding
    from kernelwright.records import Status

    known = known_findings(problems_of(store, run_id), settings)
    invalid = {row.problem: row.reason for row in rows if row.status is Status.INVALID_REFERENCE}
    faults = {
        name: (LintFinding(rule="invalid-reference", severity="error", message=reason[:500]),)
        for name, reason in invalid.items()
    }
    return {**known, **faults}


def marked(name: str, findings: Sequence[LintFinding]) -> str:
    """A problem's name, with a mark if it fails the lint or if the lint never ran it."""
    from kernelwright.datasets import lint_summary

    return f"{name} {MARK}" if lint_summary(findings) else name


def cell(findings: Sequence[LintFinding]) -> str:
    """The text of a table's lint column."""
    from kernelwright.datasets import lint_summary

    return lint_summary(findings) or CLEAN


def footnotes(findings: Findings) -> list[str]:
    """The meaning of the marks: one line for each set of rules, with the problems that fail them."""
    from kernelwright.datasets import lint_summary

    by_summary: dict[str, list[str]] = {}
    for problem, found in findings.items():
        if summary := lint_summary(found):
            by_summary.setdefault(summary, []).append(problem)
    lines = [f"{MARK} {summary}: {', '.join(names)}" for summary, names in by_summary.items()]
    return [*lines, *explanations(findings)]


def explanations(findings: Findings) -> list[str]:
    """A line that says how to run the lint, if it never ran one of the problems."""
    from kernelwright.datasets import lint_rules

    return [NOT_RUN] if any("not-linted" in lint_rules(found) for found in findings.values()) else []


def with_rules(row: Any, findings: Sequence[LintFinding]) -> dict[str, Any]:
    """A row as plain JSON. Its field ``lint`` names the rules that the problem fails."""
    from kernelwright.datasets import lint_rules
    from kernelwright.records.base import plain

    return {**plain(row), "lint": list(lint_rules(findings))}
