"""``kernelwright prompts``: the prompts for language models."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelwright.cli._common import Common, common_options
from kernelwright.cli._kernels import evaluations_of, most_trusted
from kernelwright.cli._tables import short, table
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from kernelwright.config import Settings
    from kernelwright.prompts import DeviceFacts, KernelView, Move
    from kernelwright.records import Backend, Candidate, Problem, Verdict
    from kernelwright.store import Store, StoredEvaluation

_PURPOSES = {
    "coder-cross": "a kernel that unites two (--kernel twice)",
    "coder-edit": "edits of a kernel",
    "coder-improve": "a right kernel written anew, faster",
    "coder-new": "a first kernel",
    "coder-repair": "a kernel that did not pass, repaired",
    "coder-simplify": "a right kernel as fast, with less code",
    "coder-transfer": "a kernel with a change that paid on another problem",
    "judge-optimise": "one bottleneck, one method, one plan",
    "judge-repair": "the critical issue, why, the minimal fix",
    "scratchpad": "what was learned on a problem so far, summed up",
    "tester": "inputs that tell wrong kernels from right ones",
    "verifier": "whether a kernel will fail, before it is built",
}
_SCHEMA = "(here stands the JSON schema of the role's reply)"
_HISTORY = 200  # evaluations read at most
_SHA256 = re.compile(r"[0-9a-f]{64}")


@click.group()
def prompts() -> None:
    """Show the prompts for language models."""


@prompts.command("list")
@common_options
def list_prompts(common: Common) -> None:
    """List the prompts by name."""
    from kernelwright.prompts import names

    made = table("prompt", "asks for")
    for name in names():
        made.add_row(name, _PURPOSES[name])
    common.show({"prompts": [{"name": name, "asks_for": _PURPOSES[name]} for name in names()]}, made)


@prompts.command()
@click.argument("name", metavar="NAME|SHA256")
@click.option("--problem", "-p", metavar="P", help="The problem of the prompt.")
@click.option("--backend", type=click.Choice(["cpp", "triton", "cuda"]), help="The language of the kernels.")
@click.option(
    "--kernel", "kernels", multiple=True, metavar="HASH|FILE", help="A kernel that the prompt is about (repeatable)."
)
@click.option(
    "--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="Folder of more suites."
)
@common_options
def show(
    common: Common,
    name: str,
    problem: str | None,
    backend: Backend | None,
    kernels: tuple[str, ...],
    suite_dirs: tuple[Path, ...],
) -> None:
    """Show the prompt NAME as it would be sent now, or the stored prompt with that SHA256.

    Each kernel comes with an evaluation from the store: the latest confirmed one, else the latest timed one, else the
    latest. Earlier attempts come with their measurements.
    """
    settings = common.settings(suite_dirs=suite_dirs, backend=backend)
    with common.open_store(settings, readonly=True) as store:
        if _SHA256.fullmatch(name):
            data = {"sha256": name, "text": _stored(store, name)}
        else:
            data = _rendered(store, settings, name, problem, kernels)
    if common.as_json:
        common.show(data)
    else:
        click.echo(data["text"])


def _stored(store: Store, sha256: str) -> str:
    """The text of a prompt that was sent. Raises UsageError if the store does not hold it."""
    found = store.query("SELECT kind FROM blobs WHERE sha256 = ?", [sha256])
    if not found or found[0]["kind"] != "prompt":
        raise UsageError(f"the store holds no prompt {short(sha256)}", hint="a call's prompt_sha256 names its prompt")
    return store.get_text(sha256)


def _rendered(
    store: Store, settings: Settings, name: str, problem: str | None, kernels: Sequence[str]
) -> dict[str, Any]:
    from kernelwright.agents import reply_schemas
    from kernelwright.datasets import find_problem
    from kernelwright.prompts import Task, exemplar_for, names, render

    if name not in names():
        render(name)  # raises, and lists the names
    if problem is None:
        raise UsageError("no problem was named", hint="for example --problem level1/softmax")
    wanted = 2 if name == "coder-cross" else 0 if name in ("coder-new", "scratchpad", "tester") else 1
    if len(kernels) != wanted:
        hint = "--kernel HASH, or the file of a kernel that was evaluated" if wanted else "leave --kernel out"
        raise UsageError(f"{name} needs {wanted} kernel{'s' * (wanted != 1)}, {len(kernels)} given", hint=hint)
    found = find_problem(problem, settings.suite_dirs)
    views = [_view(store, found, settings.backend, kernel, judged=name != "verifier") for kernel in kernels]
    device = _device(settings)
    task = Task.of(
        found,
        settings.backend,
        device_class=device.device_class,
        threads=settings.threads,
        baselines=_baselines(settings.baselines, views),
        own_kernels=settings.own_kernels_for(found),
        allow_precision=settings.allow_precision,
    )
    schema = reply_schemas().get(name)
    data: dict[str, Any] = {"schema_text": _SCHEMA if schema is None else json.dumps(schema, indent=1), "task": task}
    if name != "tester":
        data["device"] = device
    if wanted:
        data |= {"parents": views} if wanted == 2 else {"kernel": views[0]}
    if name.startswith(("coder", "judge", "scratchpad")):
        data["history"] = _history(store, found, settings.backend)
    if name.startswith("coder"):
        data["exemplar"] = exemplar_for(found, settings.backend)
    if name == "coder-transfer":
        data["moves"] = ()
    made = render(name, **data)
    return {"name": name, "sha256": made.sha256, "system": made.system, "user": made.user, "text": made.text}


def _device(settings: Settings) -> DeviceFacts:
    from kernelwright.evaluator import device_facts, device_of, environment

    device = device_of(settings).serving(settings.backend)
    return device_facts(environment(settings.threads, device), settings.backend, cache_dir=Path(settings.cache_dir))


def _view(store: Store, problem: Problem, backend: Backend, kernel: str, *, judged: bool) -> KernelView:
    """A kernel of the store or of a file, with its evidence from the store."""
    from kernelwright.prompts import KernelView
    from kernelwright.records import Candidate

    path = Path(kernel)
    if path.suffix == ".py":
        if not path.is_file():
            raise UsageError(f"there is no file {kernel}")
        candidate = Candidate(problem_id=problem.id, source=path.read_text(encoding="utf-8-sig"), backend=backend)
    else:
        candidate = store.candidate(kernel, problem=problem.id)
    if candidate.backend != backend:
        raise UsageError(
            f"kernel {short(candidate.sha256)} is for {candidate.backend}", hint=f"--backend {candidate.backend}"
        )
    evaluations = evaluations_of(store, candidate) if judged else []
    if not evaluations:
        if judged:
            raise UsageError(
                f"kernel {short(candidate.sha256)} was not judged on {problem.id}",
                hint=f"kernelwright evaluate {kernel} --problem {problem.id}",
            )
        return KernelView.of(candidate)
    chosen = most_trusted(evaluations)
    return KernelView.of(candidate, chosen.verdict, store.artifacts(chosen.id))


def _baselines(names: Sequence[str], views: Sequence[KernelView]) -> dict[str, float | None]:
    """Latencies of the baselines in ms, as timed beside the first kernel that has a time."""
    timed = next((view for view in views if view.latency_ms is not None), None)
    if timed is None or timed.latency_ms is None:
        return dict.fromkeys(names)
    latency_ms = timed.latency_ms.median
    return {name: latency_ms * timed.speedup[name].median if name in timed.speedup else None for name in names}


def _history(store: Store, problem: Problem, backend: Backend) -> list[Move]:
    """The latest evaluation of each kernel judged on this problem in this language, oldest first."""
    from kernelwright.prompts import Move

    newest = store.evaluations(problem=problem.id, control=False, current_only=True, newest_first=True, limit=_HISTORY)
    latest: dict[str, StoredEvaluation] = {}
    for entry in newest:
        if entry.candidate.backend == backend and entry.quarantined is None:
            latest.setdefault(entry.candidate.sha256, entry)
    return [
        Move.of(entry.candidate, entry.verdict, parent=_parent(entry.candidate, latest))
        for entry in reversed(latest.values())
    ]


def _parent(candidate: Candidate, known: dict[str, StoredEvaluation]) -> Verdict | None:
    parent = known.get(candidate.parents[0]) if candidate.parents else None
    return None if parent is None else parent.verdict
