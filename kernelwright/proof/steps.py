"""The steps of the proof. Each tells its results as it has them."""

from __future__ import annotations

import contextlib
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.config import Settings
from kernelwright.datasets import load_suite
from kernelwright.errors import KernelwrightError
from kernelwright.evaluator import Confirm, Device, ProblemSession, Referee, Search, environment, read_state
from kernelwright.evaluator.device.keeper_client import Keeper
from kernelwright.evaluator.driver.cuda import Driver, DriverError
from kernelwright.proof import texts
from kernelwright.records import Backend, Candidate, Evaluation, Problem

__all__ = ["STEPS", "Context", "Step"]

Tell = Callable[[str, Any], None]
_SHARED = 4 << 20
_FIXED = 0x7A0000000000  # an address that is seldom taken
_SUITE = "kernelwright"
_LOOKS = (12,)


class Context(NamedTuple):
    """What the steps work on. small: a rehearsal, in tiny sizes. kernels: changes what is built for a stand-in."""

    settings: Settings
    device: Device
    small: bool = False
    prepare: Callable[[Referee], None] = lambda referee: None

    @contextlib.contextmanager
    def referee(self) -> Iterator[Referee]:
        """A referee on the device."""
        with Referee(self.settings, device=self.device) as referee:
            self.prepare(referee)
            yield referee


class Step(NamedTuple):
    """A step: what it does with a context, and its seconds of six minutes."""

    run: Callable[[Context, Tell], None]
    seconds: float


# ------------------------------------------------------------------------------------------------ the machine


def machine(context: Context, tell: Tell) -> None:
    """Environment, state, and what the driver says that the device can do."""
    tell("environment", environment(1, context.device).model_dump(mode="json"))
    tell("state", read_state(context.device))
    began = time.monotonic()
    keeper = Keeper(context.device.library, images=context.device.images)
    try:
        tell("keeper opened, s", time.monotonic() - began)
        tell("device", keeper.about)
    finally:
        keeper.close()


def walls(context: Context, tell: Tell) -> None:
    """What a process can do with memory that it was given: at which address, writing where it may only read."""
    keeper = Keeper(context.device.library, images=context.device.images)
    try:
        _, fd = keeper.share(_SHARED)
        driver = Driver(context.device.library)
        for at in (_FIXED, _FIXED + (1 << 40), 0):
            mapping = driver.adopt(fd, _SHARED, at=at)
            tell(f"mapped at {at:#x}" if at else "mapped anywhere", mapping.address == at if at else mapping.address)
            mapping.close()
        guarded = driver.adopt(fd, _SHARED, writable=False)
        again = driver.adopt(fd, _SHARED)
        driver.clear(again.address, 64)
        tell("mapped again for writing", True)
        try:
            driver.clear(guarded.address, 64)
            tell("writing through a read-only mapping", "goes through")
        except DriverError as error:
            tell("writing through a read-only mapping", error.message)
        os.close(fd)
    finally:
        keeper.close()


# ------------------------------------------------------------------------------------------------ the clock


def door(context: Context, tell: Tell) -> None:
    """What an empty call takes, by the bytes of its input and as large an output."""
    sizes = {"16 KB": 4, "512 KB": 128, "16 MB": 4096, "64 MB": 16384}
    with context.referee() as referee:
        for name in ("16 KB",) if context.small else sizes:
            operator = texts.Operator(f"relu {name}", "torch.relu(x)", {"x": (sizes[name], 1024)})
            tell(name, _empty_us(context, referee, operator))


def _empty_us(context: Context, referee: Referee, operator: texts.Operator) -> dict[str, float]:
    problem = texts.problem_of(operator, small=context.small)
    with referee.open(problem, backend="cuda", baselines=("eager",)) as session:
        mean, upper = session.empty_call_ms("cuda")
        return {"mean_us": 1e3 * mean, "limit_us": 1e3 * upper}


def accuracy(context: Context, tell: Tell) -> None:
    """Time eager operators by the referee and by a CUDA graph."""
    with context.referee() as referee:
        for operator in texts.OPERATORS[:2] if context.small else texts.OPERATORS:
            problem = texts.problem_of(operator, small=context.small)
            with referee.open(problem, backend="cuda", baselines=("eager",)) as session:
                found = session.judge(texts.reference_as_candidate(problem), control=True)
            row = _times(found)
            row["graph_us"] = graph = _graph_us(problem, context.device)
            row["error"] = row["eager_us"] / graph - 1 if graph and row.get("eager_us") else None
            tell(operator.name, row)


def _times(evaluation: Evaluation) -> dict[str, Any]:
    verdict, timing = evaluation.verdict, evaluation.verdict.timing
    eager = [sample.latency_ms for sample in evaluation.samples if sample.role == "eager"]
    row: dict[str, Any] = {"status": verdict.status.value, "reason": verdict.reason}
    row |= {"notes": {f.rule: f.evidence for f in verdict.findings if f.rule.startswith("device")}}
    if timing is not None and eager:
        quartiles = statistics.quantiles(eager, n=4) if len(eager) > 1 else eager * 3
        row |= {"eager_us": 1e3 * statistics.median(eager), "quartiles_us": [1e3 * q for q in quartiles]}
        row |= {"candidate_us": 1e3 * timing.latency_ms.median}
        row |= {"speedup": {name: speedup.model_dump() for name, speedup in timing.speedup.items()}}
    return row


def _graph_us(problem: Problem, device: Device) -> float | None:
    """Microseconds of a call of our own problem in a CUDA graph; on the CPU, of a call."""
    import torch

    names: dict[str, Any] = {}
    exec(problem.source, names)  # the proof's own text
    with torch.no_grad():
        model, calls = names["Model"]().to(device.torch_name), 20
        inputs = [value.to(device.torch_name) for value in names["get_inputs"]()]
        for _ in range(3):
            model(*inputs)
        if not device.is_gpu:
            began = time.perf_counter()
            for _ in range(calls):
                model(*inputs)
            return 1e6 * (time.perf_counter() - began) / calls
        graph, kept = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            kept = [model(*inputs) for _ in range(calls)]
        times = []
        for _ in range(12):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            graph.replay()
            after.record()
            torch.cuda.synchronize()
            times.append(1e3 * before.elapsed_time(after) / calls)
        kept.clear()
        return float(statistics.median(times))


def same_code(context: Context, tell: Tell) -> None:
    """The references of built-in problems as their own candidates: how often one is called faster."""
    faster = rows = covered = 0
    problems = [texts.problem_of(texts.SOFTMAX, small=True)] if context.small else list(load_suite(_SUITE))[:40]
    with context.referee() as referee:
        for problem in problems:
            try:
                with referee.open(problem, backend="cuda", baselines=("eager",)) as session:
                    found = session.judge(texts.reference_as_candidate(problem), control=True)
            except KernelwrightError as error:
                tell(problem.id, {"error": error.message})
                continue
            row = _times(found)
            speedup = found.verdict.timing.speedup.get("eager") if found.verdict.timing else None
            if speedup is not None:
                rows, faster = rows + 1, faster + speedup.faster
                estimate = row["eager_us"] / row["candidate_us"]
                covered += abs(estimate - 1.0) <= 0.02
                row["estimate"] = estimate
            tell(problem.id, row)
            tell("in all", {"timed": rows, "called faster": faster, "within 2%": covered})


def found_115(context: Context, tell: Tell) -> None:
    """A reference that does 1.15 times the work: how often that is found."""
    problem = texts.problem_of(texts.repeated(23), small=context.small)
    twenty = texts.problem_of(texts.repeated(20), small=context.small)
    candidate = texts.reference_as_candidate(twenty).model_copy(update={"problem_id": problem.id})
    count = found = 0
    with context.referee() as referee, referee.open(problem, backend="cuda", baselines=("eager",)) as session:
        for number in range(1 if context.small else 20):
            row = _times(session.judge(candidate, control=True))
            speedup = (row.get("speedup") or {}).get("eager")
            count, found = count + 1, found + bool(speedup and speedup["faster"])
            tell(f"trial {number}", row)
            tell("in all", {"trials": count, "found": found})


# ------------------------------------------------------------------------------------------------ verdicts


def verdicts(context: Context, tell: Tell) -> None:
    """Right and wrong kernels, and the seconds of everything."""
    problem, threads = texts.problem_of(texts.SOFTMAX, small=context.small), 1 if context.small else 256
    began = time.monotonic()
    with context.referee() as referee:
        tell("referee opened, s", time.monotonic() - began)
        began = time.monotonic()
        with referee.open(problem, backend="cuda", baselines=("eager",)) as session:
            tell("check set, s", time.monotonic() - began)
            for number in range(2 if context.small else 8):
                tell(f"cuda {number}", _seconds(session, texts.cuda_kernel(str(number), threads=threads)))
            tell("wrong", _seconds(session, texts.cuda_kernel("wrong", threads=threads, wrong=True)))
            tell("confirmation", _seconds(session, texts.cuda_kernel("0", threads=threads), Confirm()))
            for number in range(0 if context.small else 4):
                tell(f"triton {number}", _seconds(session, texts.triton_kernel(str(number))))


def _seconds(session: ProblemSession, candidate: Candidate, depth: Search | Confirm | None = None) -> dict[str, Any]:
    began = time.monotonic()
    found = session.judge(candidate, depth)
    return {"seconds": time.monotonic() - began, "stages": found.verdict.seconds, **_times(found)}


def fresh_processes(context: Context, tell: Tell) -> None:
    """The flow of KernelBench's documentation: a fresh process and a ``load_inline`` build for every candidate."""
    if not context.device.is_gpu:
        tell("left out", "torch has no kernels for a stand-in")
        return
    problem = texts.problem_of(texts.SOFTMAX, small=False)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "reference.py").write_text(problem.source)
        (folder / "fresh.py").write_text(texts.FRESH_PROCESS)
        for number in range(3):
            (folder / "candidate.py").write_text(texts.extension(f"f{number}"))
            env = {**os.environ, "TORCH_EXTENSIONS_DIR": str(folder / "extensions")}
            began = time.monotonic()
            command = [sys.executable, "fresh.py", "reference.py", "candidate.py"]
            done = subprocess.run(command, cwd=folder, env=env, check=False, capture_output=True, text=True)
            said = done.stdout.strip() if done.returncode == 0 else done.stderr[-500:]
            tell(f"verdict {number}", {"seconds": time.monotonic() - began, "said": said})


def attacks(context: Context, tell: Tell) -> None:
    """The device's rows of the attack corpus, where this is a checkout."""
    folder = Path(__file__).parents[2] / "tests" / "adversarial"
    if not (folder / "corpus.py").exists():
        tell("left out", "the corpus is a part of the checkout")
        return
    sys.path.insert(0, str(folder))
    corpus = importlib.import_module("corpus")
    passed = faster = refused = 0
    sessions: dict[str, ProblemSession] = {}
    backends: Sequence[Backend] = ("cuda",) if context.small else ("cuda", "triton")
    chosen = [case for case in (*corpus.attacks(), *corpus.honest()) if case.backend in backends]
    with context.referee() as referee, contextlib.ExitStack() as ending:
        for case in chosen[:2] if context.small else chosen:
            problem = corpus.problem_of(case.problem)
            if problem.id not in sessions:
                opened = referee.open(problem, backend=case.backend, baselines=("eager",))
                sessions[problem.id] = ending.enter_context(opened)
            candidate = Candidate(problem_id=problem.id, source=case.source, backend=case.backend)
            found = sessions[problem.id].judge(candidate).verdict
            honest = case in corpus.honest()
            called = found.timing is not None and any(s.faster for s in found.timing.speedup.values())
            passed += not honest and found.passed
            faster += not honest and called
            refused += honest and not found.passed
            tell(case.name, {"status": found.status.value, "reason": found.reason, "faster": called})
            tell("in all", {"attacks passed": passed, "attacks called faster": faster, "honest refused": refused})


def suite(context: Context, tell: Tell) -> None:
    """The code generator's Triton kernels for built-in problems, against eager and torch.compile."""
    from kernelwright.campaign import Campaign
    from kernelwright.store import Store

    if not context.device.is_gpu:
        tell("left out", "Triton has no kernels for a stand-in")
        return
    settings = context.settings.with_values(backend="triton", rounds=1, baselines=("eager", "compile"))
    with Store.open(settings.store) as store:
        for problem in list(load_suite(_SUITE))[:20]:
            row = Campaign(settings, store).run([problem]).rows[0].model_dump(mode="json")
            tell(problem.id, {name: row[name] for name in ("stage", "status", "latency_ms", "speedup", "reason")})


def profiles(context: Context, tell: Tell) -> None:
    """What the profiler's tools say of a winner."""
    problem, threads = texts.problem_of(texts.SOFTMAX, small=context.small), 1 if context.small else 256
    with context.referee() as referee, referee.open(problem, backend="cuda", baselines=("eager",)) as session:
        found = session.judge(texts.cuda_kernel("0", threads=threads), Search(explain=True)).verdict
        tell("cuda", None if found.profile is None else found.profile.model_dump(mode="json"))


STEPS = {
    "machine": Step(machine, 10.0),
    "verdicts": Step(verdicts, 60.0),
    "accuracy": Step(accuracy, 60.0),
    "door": Step(door, 25.0),
    "walls": Step(walls, 10.0),
    "same code": Step(same_code, 60.0),
    "1.15 times": Step(found_115, 30.0),
    "attacks": Step(attacks, 60.0),
    "fresh processes": Step(fresh_processes, 40.0),
    "profiles": Step(profiles, 25.0),
    "suite": Step(suite, 120.0),
}
"""In order of worth; the seconds are limits, and what a step leaves over the later ones get."""
