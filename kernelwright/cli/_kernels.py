"""``kernelwright kernels``: the best kernels."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelwright.cli._common import Common, common_options, say
from kernelwright.cli._lint import footnotes, known_findings, marked, with_rules
from kernelwright.cli._tables import milliseconds, ratio, short, table, verdict_lines
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from kernelwright.config import Settings
    from kernelwright.export import Route
    from kernelwright.records import Backend, Candidate, Problem
    from kernelwright.store import Store, StoredEvaluation

EXIT_NOT_PASSED = 1


@click.group()
def kernels() -> None:
    """List, show, compare, export and verify the best kernels."""


@kernels.command()
@click.argument("problem", required=False, metavar="[P]")
@click.option("--baseline", default="eager", show_default=True, help="Rank by the speedup over this baseline.")
@click.option("--confirmed", is_flag=True, help="Only kernels confirmed in fresh processes.")
@common_options
def best(common: Common, problem: str | None, baseline: str, confirmed: bool) -> None:
    """List the best kernel of each problem, shape variant and language. P is all variants of a problem, P@2 one."""
    from rich.markup import escape

    from kernelwright.datasets import find_problem

    settings = common.settings()
    wanted = find_problem(problem, settings.suite_dirs) if problem else None
    with common.open_store(settings, readonly=True) as store:
        rows = store.best(baseline=baseline, confirmed_only=confirmed)
        of_rows = {name: store.problem(name) for name in {row.problem for row in rows}}
        if wanted is not None:
            rows = [row for row in rows if _is_of(of_rows[row.problem], wanted)]
        lints = known_findings([of_rows[row.problem] for row in rows], settings)
    made = table("problem", "backend", f">vs {baseline}", ">latency", "timed on", "stage", "kernel")
    for row in rows:
        made.add_row(
            escape(marked(row.problem, lints[row.problem])),
            row.backend,
            ratio(row.speedup),
            milliseconds(row.latency_ms.median),
            escape(row.inputs or "-"),
            ("confirmed" if row.confirmed else "timed") + ("" if row.eligible else ", library"),
            short(row.candidate),
        )
    data = {"baseline": baseline, "kernels": [with_rules(row, lints[row.problem]) for row in rows]}
    nothing = "no kernel was timed yet; 'kernelwright runs show last' shows kernels that passed without a time"
    common.show(data, made if rows else nothing, *map(escape, footnotes(lints)))


def _is_of(problem: Problem, wanted: Problem) -> bool:
    """Whether a problem is the wanted one. If ``wanted`` names no variant, every variant of it counts."""
    return wanted.id in ((problem.id,) if wanted.variant else (problem.id, problem.declared.id))


problem_option = click.option(
    "--problem", "-p", metavar="P", help="The problem or variant, if the kernel was judged on several."
)


def find_kernel(store: Store, kernel: str, problem: str | None, settings: Settings) -> Candidate:
    """The kernel whose hash starts with these digits, as judged on a problem. ``problem`` may be None if it is unique.

    Raises:
        UsageError: no kernel or several kernels match.
    """
    from kernelwright.datasets import find_problem

    named = find_problem(problem, settings.suite_dirs).id if problem else None
    return store.candidate(kernel, problem=named)


@kernels.command()
@click.argument("kernel", metavar="HASH")
@problem_option
@common_options
def show(common: Common, kernel: str, problem: str | None) -> None:
    """Show a kernel's source, its origin and its verdicts. HASH may be the first digits of the hash."""
    from rich.syntax import Syntax

    settings = common.settings()
    with common.open_store(settings, readonly=True) as store:
        candidate = find_kernel(store, kernel, problem, settings)
        evaluations = evaluations_of(store, candidate)
        if problem is None:
            evaluations += on_other_variants(store, candidate)
    data = {
        "candidate": {"sha256": candidate.sha256, **candidate.model_dump(mode="json")},
        "evaluations": [{"id": entry.id, "verdict": entry.verdict} for entry in evaluations],
    }
    head = [
        f"kernel {candidate.sha256}",
        f"problem {candidate.problem_id}, backend {candidate.backend}, by {candidate.author} ({candidate.operator})",
        *(f"parent {short(parent)}" for parent in candidate.parents),
        *([f"knobs {candidate.knobs}"] if candidate.knobs else []),
        *([f"note: {candidate.note}"] if candidate.note else []),
    ]
    for entry in evaluations:
        of = f" of {entry.verdict.problem}" if entry.verdict.problem != candidate.problem_id else ""
        head += ["", f"evaluation {entry.id}{of}", *(f"  {line}" for line in verdict_lines(entry.verdict))]
    common.show(data, *head, "", Syntax(candidate.source, "python", background_color="default", word_wrap=False))


@kernels.command()
@click.argument("kernel", metavar="HASH")
@click.argument("other", required=False, metavar="[OTHER]")
@problem_option
@common_options
def diff(common: Common, kernel: str, other: str | None, problem: str | None) -> None:
    """Show the changes from OTHER to HASH. OTHER is by default the kernel's parent or, without one, the reference."""
    from rich.syntax import Syntax

    settings = common.settings()
    with common.open_store(settings, readonly=True) as store:
        candidate = find_kernel(store, kernel, problem, settings)
        base_name, base_source = _base(store, candidate, other)
    lines = difflib.unified_diff(
        base_source.splitlines(), candidate.source.splitlines(), base_name, short(candidate.sha256), lineterm=""
    )
    text = "\n".join(lines)
    if not text and other is None:
        text = f"(the same source; knobs {candidate.knobs})"
    data = {"from": base_name, "to": candidate.sha256, "diff": text}
    common.show(data, Syntax(text, "diff", background_color="default"))


def _base(store: Store, candidate: Candidate, other: str | None) -> tuple[str, str]:
    if other is not None or candidate.parents:
        base = store.candidate(other or candidate.parents[0])
        return short(base.sha256), base.source
    return "reference", store.problem(candidate.problem_id).source


@kernels.command()
@click.argument("kernels", nargs=-1, metavar="HASH...")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The file to write.")
@click.option("--dispatch", is_flag=True, help="Write one file that chooses among several kernels by input shape.")
@click.option(
    "--backend", type=click.Choice(["cpp", "triton", "cuda"]), help="With --dispatch: only kernels in this language."
)
@problem_option
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@common_options
def export(
    common: Common,
    kernels: tuple[str, ...],
    output: Path,
    dispatch: bool,
    backend: Backend | None,
    problem: str | None,
    force: bool,
) -> None:
    """Write a drop-in nn.Module file that needs only torch and a C++ compiler.

    With --dispatch, give several kernels of one problem, or the problem P itself for the best kernel of each of its
    shape variants. The file chooses among them by the shape and dtype of the input.
    """
    settings = common.settings()
    if output.exists() and not force:
        raise UsageError(f"{output} exists", hint="choose another name, or --force")
    if dispatch:
        _export_dispatch(common, kernels, output, backend, settings)
        return
    if len(kernels) != 1:
        hint = "several go into one file with --dispatch" if kernels else "'kernelwright kernels best' lists winners"
        raise UsageError("give the hash of one kernel", hint=hint)
    _export_one(common, kernels[0], problem, output, settings)


def _export_dispatch(
    common: Common, kernels: tuple[str, ...], output: Path, backend: Backend | None, settings: Settings
) -> None:
    from kernelwright.campaign.dispatch import make_dispatch
    from kernelwright.files import write_for_user

    with common.open_store(settings, readonly=True) as store:
        made = make_dispatch(store, kernels, settings, backend=backend)
    write_for_user(output, made.text)
    for warning in made.warnings:
        say(f"warning: {warning}")
    data = {
        "problem": made.problem,
        "file": str(output),
        "bytes": len(made.text),
        "warnings": made.warnings,
        "routes": [_route(route) for route in made.routes],
    }
    shown = table("variant", "timed on", "kernel", f">vs {settings.baselines[0]}", "measured on")
    for route in made.routes:
        shown.add_row(*_route_cells(route, settings.baselines[0]))
    common.show(data, f"{output}: kernels for {made.problem}", shown)


def _route(route: Route) -> dict[str, object]:
    """The route of a variant as plain JSON. ``candidate`` is None if the reference serves the variant."""
    return {
        "variant": route.number,
        "constants": dict(route.constants),
        "inputs": list(route.inputs),
        "candidate": None if route.kernel is None else route.kernel.sha256,
        "measured_on": route.evidence.variant,
        "timing": route.evidence.verdict.timing,
    }


def _route_cells(route: Route, baseline: str) -> list[str]:
    from rich.markup import escape

    from kernelwright.records.verdicts import constants_in_words

    return [
        escape(f"{route.number}: {constants_in_words(route.constants)}"),
        escape(", ".join(route.inputs) or "-"),
        "the reference" if route.kernel is None else short(route.kernel.sha256),
        escape(ratio(route.evidence.verdict.speedup(baseline))),
        escape(route.measured_on or "itself"),
    ]


def _export_one(common: Common, kernel: str, problem: str | None, output: Path, settings: Settings) -> None:
    from kernelwright.campaign import export_text
    from kernelwright.files import write_for_user

    with common.open_store(settings, readonly=True) as store:
        candidate = find_kernel(store, kernel, problem, settings)
        passed = [entry for entry in evaluations_of(store, candidate) if entry.verdict.passed and not entry.quarantined]
        if not passed:
            raise UsageError(
                f"kernel {short(candidate.sha256)} never passed", hint="only kernels that passed can be exported"
            )
        chosen = most_trusted(passed)
        text = export_text(
            store.problem(candidate.problem_id, version=chosen.problem_version), store.evaluation(chosen.id).evaluation
        )
    write_for_user(output, text)
    common.show(
        {"candidate": candidate.sha256, "problem": candidate.problem_id, "file": str(output), "bytes": len(text)},
        f"{output}: kernel {short(candidate.sha256)} for {candidate.problem_id}",
    )


@kernels.command()
@click.argument("kernel", metavar="HASH")
@problem_option
@click.option("--sandbox", metavar="S", help="bwrap, process or none.")
@common_options
def verify(common: Common, kernel: str, problem: str | None, sandbox: str | None) -> int:
    """Judge a kernel again, in fresh processes. Exit code 1 if it no longer passes."""
    from kernelwright.campaign import evaluate

    settings = common.settings(sandbox=sandbox)
    with common.open_store(settings) as store:
        candidate = find_kernel(store, kernel, problem, settings)
        earlier = evaluations_of(store, candidate)
        version = most_trusted(earlier).problem_version if earlier else None
        evaluation = evaluate(
            candidate.source,
            store.problem(candidate.problem_id, version=version),
            settings=settings,
            backend=candidate.backend,
            knobs=candidate.knobs,
            confirm=candidate.backend == "cpp",
            store=store,
            on_stage=lambda stage: say(f"  {stage}"),
        )
    common.show(evaluation.verdict, *verdict_lines(evaluation.verdict))
    return 0 if evaluation.verdict.passed else EXIT_NOT_PASSED


def on_other_variants(store: Store, candidate: Candidate) -> list[StoredEvaluation]:
    """The evaluations of the same kernel that timed another variant of its problem."""
    own = store.problem(candidate.problem_id)
    others = [problem.id for problem in store.variants_of(own) if problem.id != own.id]
    return [entry for name in others for entry in store.evaluations(problem=name, candidate=candidate.sha256)]


def evaluations_of(store: Store, candidate: Candidate) -> list[StoredEvaluation]:
    """Every evaluation of a candidate, oldest first."""
    return store.evaluations(problem=candidate.problem_id, candidate=candidate.sha256)


def most_trusted(evaluations: list[StoredEvaluation]) -> StoredEvaluation:
    """The latest confirmed evaluation, else the latest timed one, else the latest."""

    def rank(entry: StoredEvaluation) -> tuple[bool, bool, str]:
        timing = entry.verdict.timing
        return (timing is not None and timing.confirmed, timing is not None, entry.id)

    return max(evaluations, key=rank)
