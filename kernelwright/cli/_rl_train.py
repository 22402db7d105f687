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
# A short measurement, for verdicts on schedules: kernels of the generator need no long proof, and many are judged. The
# trained policy itself is measured like every kernel, on inputs that no cache holds.
QUICK = {"looks": (16,), "window_ms": 0.5, "pool_bytes": 64 * 2**20, "check_trials": 2}  # fields of Measurement
SESSIONS = 24  # open sessions of the referee: one for each problem of a usual training


@click.command()
@click.option("--method", type=click.Choice(["sft", "grpo"]), help="sft: imitate; grpo: learn from verdicts.")
@click.option(
    "--model", metavar="PATH|tiny", help="A folder that transformers can load; tiny: a small model, built here."
)
@click.option(
    "--task",
    type=click.Choice(["schedule", "kernel"]),
    help="What the model writes; default: schedules with --method grpo and the tiny model, else kernels.",
)
@click.option(
    "--backend", type=click.Choice(["cpp", "triton", "cuda"]), help="The language of the kernels; default cpp."
)
@click.option(
    "--problem",
    "problems",
    multiple=True,
    metavar="P",
    help="Train on this problem (repeatable). Default for schedules: a set that comes with the package.",
)
@click.option(
    "--held-out", multiple=True, metavar="P", help="Measure on this problem before and after training (repeatable)."
)
@click.option("--data", metavar="PATH", help="For sft: an exported folder, a .jsonl file, or a recording's name.")
@click.option("--reward", metavar="NAME", help="Reward formula, see 'rl rewards'; default for schedules: log-speedup.")
@click.option(
    "--steps", type=click.IntRange(min=1), help="Limit of optimizer steps; default: 600 for schedules, else 400."
)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Limit of the training time, in minutes.")
@click.option("--group", type=click.IntRange(2, 64), help="Completions for each prompt; default 8.")
@click.option("--prompts", type=click.IntRange(1, 64), help="Prompts in a step; default 4.")
@click.option("--learning-rate", type=click.FloatRange(0, 1, min_open=True), help="Default 1e-3 (tiny) or 1e-5.")
@click.option(
    "--kl", type=click.FloatRange(min=0), help="For kernels: weight of the divergence from the start model; default 0."
)
@click.option("--turns", type=click.IntRange(1, 16), help="Turns of an episode that writes kernels; default 1.")
@click.option("--completion-tokens", type=click.IntRange(min=8), help="Limit of a completion's tokens; default 2048.")
@click.option("--lora-rank", type=click.IntRange(0, 256), help="LoRA rank; 0 trains the whole model; default 16.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the model, the samples and the order; default 0.")
@click.option("--save-every", type=click.IntRange(min=1), help="Steps between checkpoints; default 10.")
@click.option("--server", metavar="URL", help="A referee served by 'rl serve'; for kernels.")
@click.option("--token-file", type=click.Path(path_type=Path), help="A file with the token of that server.")
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="DIR", help="Folder for everything that the training writes."
)
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="Continue the training in this folder.")
@click.option("--sandbox", metavar="S", help="bwrap, docker, process or none.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads while timing.")
@click.option(
    "--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="Folder of more suites."
)
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

    With only --method grpo --output DIR, a tiny transformer is built and learns from the referee's verdicts to choose
    schedules of the code generator. DIR/policy is then a Coder: --coder policy:DIR/policy. Ctrl-C ends training after
    the current step; --resume DIR continues it.
    """
    from kernelwright.campaign.stopping import StopWatch, stop_on_signals
    from kernelwright.rl import TrainPlan, begin, run_training

    if (output is None) == (resume is None):
        raise UsageError("name a folder", hint="--output DIR begins a training, --resume DIR continues one")
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
            hint="a training continues with its own options; leave it out",
        )
    plan = TrainPlan.load(folder)
    watch = StopWatch()
    with ExitStack() as ending:
        opened = _scorers(common, settings, plan, folder, token_file, ending)
        ending.enter_context(
            stop_on_signals(watch, lambda: say("stopping after this step; press Ctrl-C again to drop it"))
        )
        result = run_training(folder, *opened, tell=say, stop=lambda: bool(watch.reason()))
    common.show(result, *_in_words(result))
    return 0 if result.finished else EXIT_UNFINISHED


def plan_of(asked: dict[str, Any]) -> TrainPlan:
    """The plan for the given options, with defaults for the others.

    Raises:
        UsageError: the options do not fit together.
    """
    from pydantic import ValidationError

    from kernelwright.rl import HELD_OUT, TRAINING, TrainPlan

    given = {name: value for name, value in asked.items() if value not in (None, ())}
    if "method" not in given:
        raise UsageError("imitate, or learn from verdicts?", hint="give --method sft or --method grpo")
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
    """Raise UsageError before the training begins if anything that the plan names is missing."""
    from kernelwright.datasets import find_problem
    from kernelwright.rl import REWARDS, demonstrations, require_weights

    if plan.reward not in REWARDS:
        raise UsageError(f"no reward is called {plan.reward!r}", hint=f"choose from {', '.join(REWARDS)}")
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
    """Functions that open the training scorer and the measuring scorer; None for a scorer that is not needed."""
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
    """The settings with these values, except where the user has set another value."""
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
        lines.append(f"on held-out problems: {what} {result.held_out_before:.3f} -> {result.held_out_after:.3f}")
    if result.over:
        made = table("held out, over", "speedup", "95% interval")
        for name, found in result.over.items():
            made.add_row(name, f"{found.value:.3f}x", _interval(found))
        lines.append(made)
    lines.append(f"{result.model}" if result.finished else f"kernelwright rl train --resume {result.folder}")
    return lines


def _interval(found: Mean) -> str:
    return "too few problems" if found.low is None else f"[{found.low:.3f}, {found.high:.3f}]"
