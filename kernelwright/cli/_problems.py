"""``kernelwright problems``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kernelwright.cli._common import Common, common_options, say
from kernelwright.cli._fit import fit_option, fitted_problems
from kernelwright.cli._lint import cell, explanations, known_findings, with_rules
from kernelwright.cli._tables import table

if TYPE_CHECKING:
    from kernelwright.campaign.archive import ArchiveMade
    from kernelwright.config import Settings
    from kernelwright.datasets import LintFinding, UnreadableProblem
    from kernelwright.records import KnobValue, Problem
    from kernelwright.store import Store

    Look = Callable[[Problem], tuple[LintFinding, ...]]

EXIT_WEAK = 1
SUITE = "kernelwright"  # suite of a level that is given without a suite
_NAMED = 3  # problems named at most in a line under the table

suite_dir_option = click.option(
    "--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="Folder of more suites."
)


@click.group()
def problems() -> None:
    """List, show, check and capture problems."""


@problems.command("list")
@click.option("--suite", help="Only this suite.")
@click.option("--level", type=int, help="Only this level.")
@suite_dir_option
@common_options
def list_problems(common: Common, suite: str | None, level: int | None, suite_dirs: tuple[Path, ...]) -> int:
    """List every problem, by suite and level. Exit code 1 if a file cannot be read as a problem."""
    from rich.markup import escape

    from kernelwright.datasets import load_suite, suites

    settings = common.settings(suite_dirs=suite_dirs)
    names = (suite,) if suite else suites(settings.suite_dirs)
    loaded = [load_suite(name, level, settings.suite_dirs) for name in names]
    found = [problem for one in loaded for problem in one]
    broken = [problem for one in loaded for problem in one.broken]
    lints = known_findings(found, settings)
    made = table("problem", ">no.", "category", "dtype", "lint", "title")
    for problem in found:
        meta = problem.meta
        about = (meta.category, meta.dtype, cell(lints[problem.id]), escape(meta.title))
        made.add_row(escape(problem.id), str(problem.number or "-"), *about)
    for fault in broken:
        made.add_row(escape(fault.id), str(fault.number or "-"), "-", "-", cell([fault.finding]), "(cannot be read)")
    data = {
        "problems": [_listed(problem, lints[problem.id]) for problem in found],
        "broken": [_listed_fault(fault) for fault in broken],
    }
    reasons = [f"{fault.id}: {fault.error}" for fault in broken]
    common.show(data, made, *map(escape, [*reasons, *_hindrances(lints), *explanations(lints)]))
    return EXIT_WEAK if broken else 0


def _hindrances(lints: Mapping[str, Sequence[LintFinding]]) -> list[str]:
    """The reasons why problems cannot be used here, each with the problems that it affects."""
    by_reason: dict[str, list[str]] = {}
    for name, findings in lints.items():
        for finding in findings:
            if finding.severity == "error":
                by_reason.setdefault(f"{finding.rule}: {finding.message}", []).append(name)
    return [
        f"{reason}: {', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''}"
        for reason, names in by_reason.items()
    ]


def _listed(problem: Problem, findings: Sequence[LintFinding]) -> dict[str, object]:
    row = {
        "id": problem.id,
        "number": problem.number,
        "category": problem.meta.category,
        "dtype": problem.meta.dtype,
        "title": problem.meta.title,
        "sha256": problem.sha256,
        "errors": [f"{finding.rule}: {finding.message}" for finding in findings if finding.severity == "error"],
    }
    return with_rules(row, findings)


def _listed_fault(fault: UnreadableProblem) -> dict[str, object]:
    row = {"id": fault.id, "number": fault.number, "path": fault.path, "reason": str(fault.error)}
    return with_rules(row, [fault.finding])


@problems.command()
@click.argument("problem", metavar="P")
@suite_dir_option
@common_options
def show(common: Common, problem: str, suite_dirs: tuple[Path, ...]) -> None:
    """Show one problem: its reference and its metadata."""
    from rich.syntax import Syntax

    from kernelwright.datasets import find_problem, with_sizes

    settings, sizes = common.sized_settings(suite_dirs=suite_dirs)
    (found,) = with_sizes([find_problem(problem, settings.suite_dirs)], sizes)
    meta = found.meta
    head = [
        f"{found.id}  {meta.title}".rstrip(),
        *([meta.note] if meta.note else []),
        f"category {meta.category}, dtype {meta.dtype}, mode {meta.mode}, weights are {meta.weights}",
        *([f"heavy operators: {', '.join(meta.heavy_ops)}"] if meta.heavy_ops else []),
        *(line for kind, variants in found.declared.meta.variants.items() for line in _listed_variants(kind, variants)),
        *(f"input {name}: {d.fill} in [{d.low:g}, {d.high:g}]" for name, d in meta.inputs.items()),
    ]
    data = {"sha256": found.sha256, **found.model_dump(mode="python"), "variants": _numbered(found.declared)}
    common.show(data, *head, "", Syntax(found.source, "python", background_color="default"))


def _numbered(problem: Problem) -> dict[str, list[dict[str, Any]]]:
    """The variants by device class, each with its number, its name and its constants."""
    from kernelwright.records.verdicts import constants_in_words

    return {
        kind: [
            {"number": number, "name": constants_in_words(constants), "constants": constants}
            for number, constants in enumerate(variants)
        ]
        for kind, variants in problem.meta.variants.items()
    }


def _listed_variants(kind: str, variants: Sequence[Mapping[str, KnobValue]]) -> list[str]:
    """The variants of a device class, with the numbers and names that ``--variant`` takes."""
    from kernelwright.records.verdicts import constants_in_words

    lines = [f"  {number}: {constants_in_words(constants)}" for number, constants in enumerate(variants)]
    return [f"{kind} variants: all are checked; the first, or the one of --variant, is timed", *lines]


@problems.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="FOLDER")
@click.option("--repository", metavar="R", help="Another dataset of the hub with the same columns.")
@click.option("--revision", metavar="V", help="A branch, a tag or a commit of the dataset.")
@common_options
def fetch(common: Common, folder: Path, repository: str | None, revision: str | None) -> None:
    """Fetch KernelBench's problems from the Hugging Face hub into a folder, for --suite-dir.

    It needs a network. It does not change existing files that have another text.
    """
    from rich.markup import escape

    from kernelwright.datasets import HUB_REPOSITORY, fetch_kernelbench

    found = fetch_kernelbench(folder, repository or HUB_REPOSITORY, revision)
    for line in found.refused:
        say(f"left out: {line}")
    data = {"folder": str(found.folder), "problems": found.problems, "refused": list(found.refused)}
    common.show(
        data,
        f"{found.problems} problems in {escape(str(found.folder))}",
        f"use them with: --suite-dir {escape(str(found.folder))}",
    )


@problems.command()
@click.argument("references", metavar="[P]...", nargs=-1)
@click.option("--suite", help=f"Every problem of this suite (default with --level: {SUITE}).")
@click.option("--level", type=int, help="Only this level of the suite.")
@fit_option
@click.option("--static", "static_only", is_flag=True, help="Only read the files; run nothing.")
@click.option("--sandbox", metavar="S", help="bwrap, process or none.")
@suite_dir_option
@common_options
def lint(
    common: Common,
    references: tuple[str, ...],
    suite: str | None,
    level: int | None,
    fit: bool,
    static_only: bool,
    sandbox: str | None,
    suite_dirs: tuple[Path, ...],
) -> int:
    """Find weaknesses of problems: outputs that are constant, tiny, random or ignore an input, and useless work.

    Each file is read, and then run in the sandbox. ``--set NAME=VALUE`` changes its sizes. For one problem, exit code 1
    means a warning or an error. For several problems or a suite, it means an error in one of them.
    """
    from kernelwright.datasets import with_sizes
    from kernelwright.errors import UsageError

    settings, sizes = common.sized_settings(suite_dirs=suite_dirs, sandbox=sandbox)
    if not references and suite is None and level is None:
        raise UsageError("no problem to lint", hint="name problems, or a suite with --suite, or --level")
    if fit and static_only:
        raise UsageError("--static runs nothing, and --fit runs every problem", hint="leave one of them out")
    whole = _whole(suite or SUITE, level, settings) if suite or level is not None else []
    targets = [*(_named(reference, settings) for reference in references), *whole]
    if sizes:
        targets = _readable(targets, lambda problems: with_sizes(problems, sizes))
    if fit:
        targets = _readable(targets, lambda problems: fitted_problems(problems, settings))
    alone = len(targets) == 1 and not whole
    with ExitStack() as stack:
        look = _linter(settings, static_only, stack)
        reports = [_report(target, look, alone=alone) for target in targets]
    if alone:
        return _show_one(common, reports[0], static_only, references[0])
    return _show_several(common, reports, static_only)


class LintReport(NamedTuple):
    """The findings in one problem. ``problem`` is its id, or the reference as given if the file is broken."""

    problem: str
    findings: tuple[LintFinding, ...]

    def count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def _named(reference: str, settings: Settings) -> Problem | UnreadableProblem:
    """The problem that a reference names. A file that breaks the contract keeps the reference as its name."""
    from kernelwright.datasets import UnreadableProblem, find_problem
    from kernelwright.errors import InvalidReferenceError

    try:
        return find_problem(reference, settings.suite_dirs)
    except InvalidReferenceError as error:
        return UnreadableProblem(reference, None, reference, error)


def _whole(suite: str, level: int | None, settings: Settings) -> list[Problem | UnreadableProblem]:
    from kernelwright.datasets import load_suite

    loaded = load_suite(suite, level, settings.suite_dirs)
    return [*loaded, *loaded.broken]


def _readable(
    targets: Sequence[Problem | UnreadableProblem], change: Callable[[list[Problem]], list[Problem]]
) -> list[Problem | UnreadableProblem]:
    """The targets in their order, with ``change`` applied to the problems. Broken files stay as they are."""
    from kernelwright.datasets import UnreadableProblem

    changed = iter(change([target for target in targets if not isinstance(target, UnreadableProblem)]))
    return [target if isinstance(target, UnreadableProblem) else next(changed) for target in targets]


def _linter(settings: Settings, static_only: bool, stack: ExitStack) -> Look:
    """Return a function that lints one problem. ``stack`` closes the sandbox that the function uses.

    The findings of a run are recorded for the tables. A failure to run a problem is recorded too.
    """
    from kernelwright.datasets import LintFinding, LintRecords, lint_static
    from kernelwright.datasets import lint as lint_all
    from kernelwright.sandbox import Limits, WorkerFailed, open_sandbox

    if static_only:
        return lint_static
    say("  running references in the sandbox")
    opened = stack.enter_context(open_sandbox(settings.sandbox))
    limits = Limits(memory_bytes=settings.memory_bytes, wall_s=settings.capture_timeout_s)
    records = LintRecords(settings.cache_dir)

    def look(problem: Problem) -> tuple[LintFinding, ...]:
        try:
            return lint_all(problem, lambda entry, payload: opened.call(entry, payload, limits=limits), records=records)
        except WorkerFailed as error:
            records.put(problem, [LintFinding.of_error(error, problem)])
            raise

    return look


def _report(target: Problem | UnreadableProblem, look: Look, *, alone: bool) -> LintReport:
    """Lint one problem. An unreadable file becomes a finding; if it is the only target, its error is raised."""
    from kernelwright.datasets import LintFinding, UnreadableProblem
    from kernelwright.sandbox import WorkerFailed

    if isinstance(target, UnreadableProblem):
        if alone:
            raise target.error
        return LintReport(target.id, (target.finding,))
    try:
        return LintReport(target.id, look(target))
    except WorkerFailed as error:
        return LintReport(target.id, (LintFinding.of_error(error, target),))


def _show_one(common: Common, report: LintReport, static_only: bool, named: str) -> int:
    """Show the findings in a problem, and its sizes. ``named`` is its name on the command line."""
    from kernelwright.records.problems import VARIANT_MARK

    lines = [f"{entry.severity}: {entry.rule}{_at(entry.line)}: {entry.message}" for entry in report.findings]
    sizes = report.problem.partition(VARIANT_MARK)[2]
    sized = [f"in these sizes: {named.partition(VARIANT_MARK)[0]}{VARIANT_MARK}{sizes}"] if "=" in sizes else []
    weak = any(entry.severity != "info" for entry in report.findings)
    data = {"problem": report.problem, "ok": not weak, "findings": report.findings, "static_only": static_only}
    common.show(data, *(lines or [f"{report.problem}: no weakness found"]), *sized)
    return EXIT_WEAK if weak else 0


def _show_several(common: Common, reports: Sequence[LintReport], static_only: bool) -> int:
    from rich.markup import escape

    made = table("problem", ">errors", ">warnings", ">infos", "rules")
    rows = []
    for report in reports:
        counts = [report.count(severity) for severity in ("error", "warning", "info")]
        rules = list(dict.fromkeys(finding.rule for finding in report.findings))
        made.add_row(escape(report.problem), *(str(count or "-") for count in counts), escape(", ".join(rules)))
        rows.append(
            {
                "problem": report.problem,
                "ok": not counts[0],
                **dict(zip(("errors", "warnings", "infos"), counts, strict=True)),
                "findings": report.findings,
            }
        )
    weak = any(report.count("error") for report in reports)
    reasons = [
        escape(f"{report.problem}: {finding.rule}{_at(finding.line)}: {finding.message}")
        for report in reports
        for finding in report.findings
        if finding.severity == "error"
    ]
    common.show({"problems": rows, "ok": not weak, "static_only": static_only}, made, *reasons)
    return EXIT_WEAK if weak else 0


@problems.command()
@click.argument("reference", metavar="P")
@click.option("--make", is_flag=True, help="Let the Tester search for generators, and add the ones found.")
@click.option("--tester", metavar="C", help="Model that proposes generators besides the search; offline: none.")
@click.option("--max-cost-usd", type=click.FloatRange(min=0, min_open=True), help="Cost limit in US dollars.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Limit of the model's tokens, in and out.")
@click.option("--sandbox", metavar="S", help="bwrap, process or none.")
@suite_dir_option
@common_options
def archive(
    common: Common,
    reference: str,
    make: bool,
    tester: str | None,
    sandbox: str | None,
    suite_dirs: tuple[Path, ...],
    max_cost_usd: float | None,
    max_tokens: int | None,
) -> None:
    """Show a problem's archive: input generators that check its candidates besides the fixed distributions.

    The archive lies in the store, and every command that judges with that store uses it. --make puts faults into
    kernels that passed. It then searches for inputs that reveal the faults that the fixed distributions miss.
    """
    from rich.markup import escape

    from kernelwright.datasets import find_problem
    from kernelwright.records.problems import archive_id

    settings = common.settings(
        suite_dirs=suite_dirs, sandbox=sandbox, tester=tester, max_cost_usd=max_cost_usd, max_tokens=max_tokens
    )
    problem = find_problem(reference, settings.suite_dirs)
    with common.open_store(settings, readonly=not make) as store:
        made = _make_archive(problem, settings, store) if make else None
        rows = store.archived(problem)
    generators = [row.generator for row in rows]
    shown = table("generator", "draws", "reason", "author", "added")
    for row in rows:
        shown.add_row(
            row.generator.id, escape(row.generator.describe()), _reason(row.evidence), row.author, row.created_at[:10]
        )
    data = {
        "problem": problem.id,
        "archive": archive_id(generators),
        "generators": [
            {"id": row.generator.id, **row.generator.model_dump(mode="json"), **row.model_dump(exclude={"generator"})}
            for row in rows
        ],
        "made": None if made is None else made._asdict() | {"archive": made.archive._asdict()},
    }
    told = [] if made is None else [_told(made)]
    if not rows:
        told.append(
            "the archive is empty" + ("" if make else f"; try 'kernelwright problems archive {reference} --make'")
        )
    common.show(data, *told, *([shown] if rows else []))


def _make_archive(problem: Problem, settings: Settings, store: Store) -> ArchiveMade:
    from kernelwright.campaign.archive import make_archive

    return make_archive(problem, settings=settings, store=store, tell=say)


def _told(made: ArchiveMade) -> str:
    found = made.archive
    return (
        f"{made.faults} faults in {made.kernels} right kernels: the check passed {len(found.survivors)}, "
        f"and generators catch {len(found.caught)} of those; {made.new} generators are new"
    )


def _reason(evidence: Mapping[str, Any]) -> str:
    caught = evidence.get("catches", ())
    faults = sorted({str(name).partition(" of ")[0] for name in caught})
    reasons = {"mirrors": "mirrors another generator", "variety": "the only one of its kind"}
    return next((told for word, told in reasons.items() if evidence.get(word)), ", ".join(faults) or "-")


@problems.command()
@click.argument("spec", metavar="MODULE:FACTORY")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The problem file to write.")
@click.option("--inputs", metavar="SPEC", help="Example inputs, such as 'float32[8,64],int64[8]:0..100'.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@common_options
def capture(common: Common, spec: str, output: Path, inputs: str | None, force: bool) -> None:
    """Turn any module into a problem file.

    FACTORY returns (module, example inputs), or only the module if --inputs describes the inputs. MODULE is an
    importable name or a path to a .py file. Its code runs with your permissions.
    """
    from kernelwright.datasets import capture_module
    from kernelwright.errors import UsageError

    if output.exists() and not force:
        raise UsageError(f"{output} exists", hint="choose another name, or --force")
    problem = capture_module(spec, out=output, inputs=inputs)
    common.show(
        {"problem": str(output), "sha256": problem.sha256},
        f"{output}: written; try 'kernelwright problems lint {output}'",
    )


def _at(line: int | None) -> str:
    return f" (line {line})" if line else ""
