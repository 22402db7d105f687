"""Begin a bench, work on it, and report it, for the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.cli._bench_folder import show_report
from kernelwright.cli._common import EXIT_OF_STATUS, Common, say
from kernelwright.cli._optimize import BUDGET_FLAGS, EXIT_NOT_ALL, choose_problems
from kernelwright.cli._progress import show_progress
from kernelwright.cli._tables import table, unjudged_lines
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from kernelwright.bench import StoredBench
    from kernelwright.campaign import CampaignResult
    from kernelwright.cli._progress import Listener
    from kernelwright.config import Settings
    from kernelwright.store import RunRow, Store

RECIPE = "best-of-n"  # independent samples, unless another recipe is given
EXIT_MACHINE = 3


def begin_bench(
    common: Common,
    store: Store,
    name: str,
    *,
    problems: tuple[str, ...],
    suite: str | None,
    level: int | None,
    everything: bool,
    fit: bool,
    samples: int | None,
    **flags: Any,
) -> RunRow:
    """The bench of that name, created if it does not exist. ``samples`` may raise its number of samples."""
    from kernelwright.agents.llm import absolute_spec
    from kernelwright.campaign import SamplePlan, Sampler, find_bench, plan_of, with_recipe

    settings, sizes = common.sized_settings(**given_settings(flags))
    if settings.origin("recipe") == "default":
        settings = settings.with_values("bench", recipe=RECIPE)
    settings = with_recipe(settings)
    named = bool(problems or suite or level is not None or everything)
    chosen = choose_problems(problems, suite, level, everything, settings, None, sizes, fit) if named else None
    known = find_bench(store, name)
    if known is None:
        if chosen is None:
            hint = "name problems, or --suite, --level or --all; 'kernelwright bench list' shows the benches"
            raise UsageError(f"there is no bench {name!r} yet, and no problems were named for a new one", hint=hint)
        for row in chosen.faults:
            say(f"left out: {row.problem}: {row.reason}")
        plan = SamplePlan(name=checked_name(name), samples=samples or 1)
        return store.run(Sampler(settings, store).create(plan, chosen.problems))
    if chosen is not None and {p.id for p in chosen.problems} != set(known.config.problems):
        raise UsageError(f"the bench {name!r} has other problems than these", hint="choose a new name for them")
    if flags.get("coder") and absolute_spec(settings.coder.model) != known.config.coder:
        raise UsageError(f"the bench {name!r} is written by {known.config.coder}", hint="choose a new name for another")
    _refuse_other_settings(name, known, settings, flags)
    plan = plan_of(known)
    if plan.origin != "written":
        raise UsageError(f"the samples of {name!r} are {plan.origin}", hint="'kernelwright bench evaluate' judges them")
    if samples is not None and samples < plan.samples:
        raise UsageError(f"the bench {name!r} has {plan.samples} samples a problem", hint="--samples can only raise it")
    if samples is not None and samples > plan.samples:
        more = plan.model_copy(update={"samples": samples}).model_dump(mode="json")
        store.set_run_config(known.id, known.config.model_copy(update={"bench": more, "rounds": samples}))
    return store.run(known.id)


def begin_references(
    common: Common,
    store: Store,
    name: str,
    baselines: tuple[str, ...],
    *,
    problems: tuple[str, ...],
    suite: str | None,
    level: int | None,
    everything: bool,
    fit: bool,
    **flags: Any,
) -> RunRow:
    from kernelwright.bench import reference_samples
    from kernelwright.campaign import SamplePlan, Sampler, find_bench, plan_of
    from kernelwright.evaluator import BASELINES

    known = find_bench(store, name)
    if known is not None and not plan_of(known).control:
        raise UsageError(f"the bench {name!r} contains candidates, not references", hint="choose a new name")
    settings, sizes = common.sized_settings(**given_settings(flags), baselines=baselines or BASELINES)
    if known is not None and not (problems or suite or level is not None or everything):
        _refuse_other_settings(name, known, settings, {**flags, "baselines": baselines})
        return known
    chosen = choose_problems(problems, suite, level, everything, settings, None, sizes, fit)
    if known is not None:
        if {p.id for p in chosen.problems} != set(known.config.problems):
            raise UsageError(f"the bench {name!r} has other problems than these", hint="choose a new name for them")
        _refuse_other_settings(name, known, settings, {**flags, "baselines": baselines})
        return known
    for row in chosen.faults:
        say(f"left out: {row.problem}: {row.reason}")
    plan = SamplePlan(name=checked_name(name), origin="references")
    samples = reference_samples(chosen.problems, settings.backend)
    return store.run(Sampler(settings, store).create(plan, chosen.problems, samples))


def _refuse_other_settings(name: str, known: RunRow, settings: Settings, flags: Mapping[str, Any]) -> None:
    """Raise UsageError if a given flag differs from the settings of the existing bench."""
    for flag in ("backend", "baselines", "threads", "recipe", "sandbox"):
        if flags.get(flag) not in (None, ()) and settings.value(flag) != getattr(known.config, flag):
            has = getattr(known.config, flag)
            told = ", ".join(has) if isinstance(has, tuple) else has
            raise UsageError(f"the bench {name!r} has {flag} {told}", hint="choose a new name for another value")


def given_budgets(asked: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: asked[name] for name in BUDGET_FLAGS}


def given_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, as settings. A flag that is None or an empty tuple was not given."""
    return {name: value for name, value in flags.items() if value not in (None, ())}


def work_on(
    common: Common,
    store: Store,
    found: RunRow,
    *,
    write: bool,
    judge: bool,
    budgets: Mapping[str, float | None] | None = None,
    heeding: Callable[[Listener], Listener] = lambda listener: listener,
) -> CampaignResult:
    from kernelwright.campaign import Sampler

    with show_progress() as listener:
        settings, _ = common.sized_settings()
        sampler = Sampler(settings, store, tell=heeding(listener), signals=True)
        return sampler.work(found.id, write=write, judge=judge, **(budgets or {}))


def the_bench(store: Store, name: str) -> RunRow:
    from kernelwright.campaign import find_bench

    found = find_bench(store, name)
    if found is None:
        raise unknown_bench(name)
    return found


def unknown_bench(name: str) -> UsageError:
    return UsageError(f"this store has no bench {name!r}", hint="'kernelwright bench list' shows its benches")


def loaded_bench(store: Store, found: RunRow, environment: str | None = None) -> StoredBench:
    from kernelwright.bench import load_bench

    return load_bench(store, store.run(found.id), environment)


def end_bench(
    common: Common,
    store: Store,
    result: CampaignResult,
    name: str,
    html: Path | None = None,
    markdown: Path | None = None,
) -> int:
    """Report the results so far, and say how to continue unfinished work. Returns the exit code."""
    from kernelwright.bench import report_of

    loaded = loaded_bench(store, the_bench(store, name))
    code = exit_code(result) or (0 if loaded.samples else EXIT_NOT_ALL)
    unjudged = [{"problem": row.problem, "reason": row.reason, "retry": row.retry} for row in result.unjudged]
    ended = {"status": result.status, "reason": result.reason, "exit_code": code, "seconds": round(result.seconds, 3)}
    made = report_of(loaded, name)
    made = made._replace(lines=[*made.lines, *unjudged_lines(result)])
    show_report(common, made, html, markdown, {**ended, "without_verdict": unjudged})
    if not loaded.samples:
        say(f"nothing to judge: write samples with: kernelwright bench generate {quoted(name)}{common.store_flag}")
    if code and (result.reason or any(row.retry for row in result.rows)):
        say(f"{result.status}: everything finished is saved")
        verb = {"imported": "evaluate", "references": "baselines"}.get(loaded.run.config.coder, "run")
        say(f"continue with: kernelwright bench {verb} {quoted(name)}{common.store_flag}")
    return code


def exit_code(result: CampaignResult) -> int:
    """The exit code of ended work: whether it was stopped or problems lack a verdict, not whether samples passed."""
    if any(row.retry for row in result.rows):
        return EXIT_MACHINE
    if result.reason:
        return EXIT_OF_STATUS.get(result.status, 0)
    return EXIT_NOT_ALL if result.unjudged else 0


def show_baselines(common: Common, loaded: StoredBench, result: CampaignResult, name: str) -> None:
    from rich.markup import escape

    names = loaded.baselines
    made = table("problem", "status", *(f">{baseline} ms" for baseline in names), title="Baselines")
    rows = []
    for found in loaded.samples:
        verdict = found.verdict
        timing = None if verdict is None else verdict.timing
        status = "not judged" if verdict is None else verdict.status.value
        latency = None if timing is None else timing.latency_ms.median
        speedups = {} if timing is None else timing.speedup
        times = {n: latency * speedups[n].median for n in names if latency is not None and n in speedups}
        made.add_row(escape(found.problem.id), status, *(f"{times[n]:.4f}" if n in times else "-" for n in names))
        eager = speedups.get("eager")
        rows.append(
            {
                "problem": found.problem.id,
                "status": None if verdict is None else status,
                "reason": "" if verdict is None else verdict.reason,
                "milliseconds": times,
                "faster_than_itself": eager is not None and eager.faster,
            }
        )
    timed = [row for row in rows if row["milliseconds"]]
    faster = sum(bool(row["faster_than_itself"]) for row in rows)
    passed = sum(row["status"] == "PASSED" for row in rows)
    data = {"bench": name, "run": loaded.run.id, "status": result.status, "problems": rows}
    common.show(
        {**data, "passed": passed, "timed": len(timed), "faster_than_itself": faster},
        made,
        f"{passed} of {len(rows)} references passed as controls, {len(timed)} were timed, "
        f"{faster} called faster than themselves",
        f"write KernelBench's files with: kernelwright bench export {quoted(name)} FOLDER --format baselines"
        f"{common.store_flag}",
    )


def checked_name(name: str) -> str:
    """The name, if a bench may have it.

    Raises:
        UsageError: the name is invalid.
    """
    from pydantic import ValidationError

    from kernelwright.campaign import SamplePlan

    try:
        return SamplePlan(name=name).name
    except ValidationError:
        hint = "letters, digits, spaces and . _ + -, at most 80, beginning with a letter, a digit or _"
        raise UsageError(f"a bench cannot be called {name[:100]!r}", hint=hint) from None


def quoted(name: str) -> str:
    return f"'{name}'" if " " in name else name
