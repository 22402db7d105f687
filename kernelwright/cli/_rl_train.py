"""``kernelwright rl train``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelwright.cli._common import Common, common_options, say
from kernelwright.cli._tables import table
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from kernelwright.campaign import Mean
    from kernelwright.config import Settings
    from kernelwright.rl import TrainPlan, TrainResult

EXIT_UNFINISHED = 4
# What a verdict of a schedule may take: kernels of the generator need no long proof, and many are judged. What was
# learned from them is measured as everything is, on inputs that no cache holds.
QUICK = {"looks": (16,), "window_ms": 0.5, "pool_bytes": 64 * 2**20, "check_trials": 2}  # of a Measurement
SESSIONS = 24  # of the referee that are kept open: one for each problem of a usual training


@click.command()
@click.option("--method", type=click.Choice(["sft", "grpo"]), help="Imitation, or learning from verdicts.")
@click.option("--model", metavar="PATH|tiny", help="A folder that transformers can load; tiny: one built here.")
@click.option(
    "--task",
    type=click.Choice(["schedule", "kernel"]),
    help="What it writes; default: schedules with --method grpo and the tiny model, else kernels.",
)
@click.option(
    "--backend", type=click.Choice(["cpp", "triton", "cuda"]), help="The language of the kernels; default cpp."
)
@click.option(
    "--problem",
    "problems",
    multiple=True,
    metavar="P",
    help="Train on this (repeatable); default, for schedules: a set that comes with the package.",
)
@click.option("--held-out", multiple=True, metavar="P", help="Measure on this, before and after (repeatable).")
@click.option("--data", metavar="PATH", help="For sft: an exported folder, a .jsonl file, or a recording's name.")
@click.option("--reward", metavar="NAME", help="The formula, see 'rl rewards'; default: log-speedup for schedules.")
@click.option(
    "--steps", type=click.IntRange(min=1), help="Steps of the optimizer at most; default 600 (schedules) or 400."
)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Minutes of training at most.")
@click.option("--group", type=click.IntRange(2, 64), help="Completions of a prompt; default 8.")
@click.option("--prompts", type=click.IntRange(1, 64), help="Prompts of a step; default 4.")
@click.option("--learning-rate", type=click.FloatRange(0, 1, min_open=True), help="Default 1e-3 (tiny) or 1e-5.")
@click.option(
    "--kl", type=click.FloatRange(min=0), help="Of kernels: weight of the divergence from the start; default 0."
)
@click.option("--turns", type=click.IntRange(1, 16), help="Turns of an episode that writes kernels; default 1.")
@click.option("--completion-tokens", type=click.IntRange(min=8), help="Tokens of a completion; default 2048.")
@click.option("--lora-rank", type=click.IntRange(0, 256), help="Of adapters; 0 trains the whole model; default 16.")
@click.option("--seed", type=click.IntRange(min=0), help="Of the model, draws and order; default 0.")
@click.option("--save-every", type=click.IntRange(min=1), help="Steps between checkpoints; default 10.")
@click.option("--server", metavar="URL", help="A referee that 'rl serve' serves elsewhere; for kernels.")
@click.option("--token-file", type=click.Path(path_type=Path), help="A file with the token of that server.")
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Where everything of it goes.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="Go on with the training in a folder.")
@click.option("--sandbox", metavar="S", help="bwrap, docker, process or none.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads while timing.")
@click.option("--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="More suites.")
@common_options
def train(
    common: Common,
    output: Path | None,
    resume: Path | None,
    token_file: Path | None,
    sandbox: str | None,
    threads: int | None,
    suite_dirs: tuple[Path, ...],
    **asked: Any,
) -> int:
    """Train a policy that writes schedules, or a language model that writes kernels.

    With nothing but --method grpo --output DIR, a tiny transformer is built and learns from the referee's verdicts to
    choose schedules of the code generator; DIR/policy is then a Coder: --coder policy:DIR/policy. Training ends after a
    step on Ctrl-C, and goes on with --resume DIR.
    """
    from kernelwright.campaign.stopping import StopWatch, stop_on_signals
    from kernelwright.rl import TrainPlan, begin, run_training

    if (output is None) == (resume is None):
        raise UsageError("name a folder", hint="--output DIR begins a training, --resume DIR goes on with one")
    folder = resume or output
    assert folder is not None
    settings = common.settings(sandbox=sandbox, threads=threads, suite_dirs=suite_dirs or None)
    if resume is None:
        planned = plan_of(asked)
        require_parts(planned, settings)
        begin(planned, folder)
    elif given := [name for name, value in asked.items() if value not in (None, ())]:
        raise UsageError(
            f"--{given[0].replace('_', '-')} cannot be changed any more",
            hint="a training goes on as it was begun; leave it out",
        )
    plan = TrainPlan.load(folder)
    watch = StopWatch()
    with ExitStack() as ending:
        opened = _scorers(common, settings, plan, folder, token_file, ending)
        ending.enter_context(
            stop_on_signals(watch, lambda: say("stopping after this step; once more to drop what is in hand"))
        )
        result = run_training(folder, *opened, tell=say, stop=lambda: bool(watch.reason()))
    common.show(result, *_in_words(result))
    return 0 if result.finished else EXIT_UNFINISHED


def plan_of(asked: dict[str, Any]) -> TrainPlan:
    """The plan that options ask for, with what they leave open.

    Raises:
        UsageError: they do not fit together.
    """
    from pydantic import ValidationError

    from kernelwright.rl import HELD_OUT, TRAINING, TrainPlan

    given = {name: value for name, value in asked.items() if value not in (None, ())}
    if "method" not in given:
        raise UsageError("imitate, or learn from verdicts?", hint="--method sft or --method grpo")
    tiny = given.get("model", "tiny") == "tiny"
    task = given.setdefault("task", "schedule" if tiny and given["method"] == "grpo" else "kernel")
    given.setdefault("learning_rate", 1e-3 if tiny else 1e-5)
    if task == "schedule":
        if given["method"] == "sft":
            raise UsageError("schedules are learned from verdicts", hint="--method grpo, or --task kernel")
        given.setdefault("reward", "log-speedup")
        given.setdefault("steps", 600)
        if "problems" not in given:
            given["problems"] = TRAINING
            given.setdefault("held_out", HELD_OUT)
    elif given["method"] == "grpo" and "problems" not in given:
        raise UsageError("which problems is it to learn on?", hint="--problem P, once for each")
    given.setdefault("prompts", min(4, max(1, len(given.get("problems", ())) or 4)))
    try:
        return TrainPlan(**given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"{place}: {first['msg']}" if place else first["msg"].removeprefix("Value error, "),
            hint="see 'kernelwright rl train --help'",
        ) from error


def require_parts(plan: TrainPlan, settings: Settings) -> None:
    """UsageError unless all that a plan names is there: so that nothing is begun that cannot go on."""
    from kernelwright.datasets import find_problem
    from kernelwright.rl import REWARDS, demonstrations, require_weights

    if plan.reward not in REWARDS:
        raise UsageError(f"no reward is called {plan.reward!r}", hint=f"there is {', '.join(REWARDS)}")
    if plan.method == "sft":
        demonstrations(plan.data)
    elif not plan.server:
        for name in (*plan.problems, *plan.held_out):
            find_problem(name, settings.suite_dirs)
    if plan.model != "tiny":
        require_weights(plan.model)


def _scorers(
    common: Common, settings: Settings, plan: TrainPlan, folder: Path, token_file: Path | None, ending: ExitStack
) -> tuple[Any, Any]:
    """How to open whoever scores, and whoever measures: nobody for imitation, a server where one is named."""
    from kernelwright.rl import LocalScorer, RemoteScorer, training_run

    if plan.method == "sft":
        return None, None
    if plan.server:
        token = token_file.read_text(encoding="utf-8").strip() if token_file else None
        return (lambda: RemoteScorer(plan.server, token=token)), None
    store = ending.enter_context(common.open_store(settings))
    run_id = ending.enter_context(training_run(store, settings, folder))

    def opener(chosen: Settings) -> Any:
        return lambda: LocalScorer(chosen, store, reward=plan.reward, run_id=run_id, sessions=SESSIONS)

    if plan.task == "kernel":
        return opener(settings), None
    alone = _with_open(settings, baselines=("eager",))
    return opener(_with_open(alone, measurement=QUICK)), opener(alone)


def _with_open(settings: Settings, **values: Any) -> Settings:
    """Settings with values wherever they have nothing but a default."""
    open_ones = {name: value for name, value in values.items() if settings.origin(name) == "default"}
    return settings.with_values("a training of schedules", **open_ones)


def _in_words(result: TrainResult) -> list[Any]:
    lines: list[Any] = []
    state = "trained" if result.finished else "stopped"
    what = "loss" if result.method == "sft" else "mean reward"
    course = "" if result.first is None else f", {what} {result.first:.3f} -> {result.last:.3f}"
    verdicts = f", {result.verdicts} verdicts" if result.verdicts else ""
    lines.append(f"{state} in {result.seconds:.0f} s, {result.steps} steps{verdicts}{course}")
    if result.held_out_after is not None:
        lines.append(f"on what was held out: {what} {result.held_out_before:.3f} -> {result.held_out_after:.3f}")
    if result.over:
        made = table("held out, over", "times as fast", "95% interval")
        for name, found in result.over.items():
            made.add_row(name, f"{found.value:.3f}x", _interval(found))
        lines.append(made)
    lines.append(f"{result.model}" if result.finished else f"kernelwright rl train --resume {result.folder}")
    return lines


def _interval(found: Mean) -> str:
    return "too few problems" if found.low is None else f"[{found.low:.3f}, {found.high:.3f}]"
