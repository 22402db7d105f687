"""The steps of the proof. Each tells its results as it has them."""

from __future__ import annotations

import collections
import contextlib
import importlib
import itertools
import math
import os
import re
import resource
import secrets
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
from kernelwright.evaluator import (
    Confirm,
    Device,
    ProblemSession,
    Referee,
    Search,
    environment,
    read_state,
    use_by_others,
)
from kernelwright.evaluator.device.keeper_client import Keeper
from kernelwright.evaluator.device.station import Station
from kernelwright.evaluator.driver.cuda import Driver, DriverError
from kernelwright.evaluator.host.host import RUNNER_ON_DEVICE
from kernelwright.proof import experiments, texts
from kernelwright.proof.rows import Tell, reported
from kernelwright.records import Backend, Candidate, Evaluation, Problem

__all__ = ["STEPS", "Context", "Step"]

_SHARED = 4 << 20
_FIXED = 0x7A0000000000  # an address that is seldom taken
_SUITE = "kernelwright"
_CONFIRMED_S = 20.0
_ATTACKED_S = 5.0
_TIMED_ELEMENTS = 1 << 22
_MOST_ARTIFACT = 1500
_EXPERIMENTS_MINUTES = 10.0
_CHAINS = {"long": (40, 4096), "short": (12, 256)}  # launches, and rows of 4 KB that each of them passes over
_MOST_TIMES = 4  # as many launches as the reference has steps
_MOST_CONFIRMATIONS = 100
_OWN_CALL = re.compile(r"in its own process a call took ([0-9.e+-]+) us, an empty one ([0-9.e+-]+) us")


class Context(NamedTuple):
    """What the steps work on. small: a rehearsal, in tiny sizes. kernels: changes what is built for a stand-in."""

    settings: Settings
    device: Device
    small: bool = False
    prepare: Callable[[Referee], None] = lambda referee: None

    @contextlib.contextmanager
    def referee(self, **values: Any) -> Iterator[Referee]:
        """A referee on the device; ``values`` of settings other than the context's."""
        with Referee(self.settings.with_values(**values), device=self.device) as referee:
            self.prepare(referee)
            yield referee

    def quick(self) -> dict[str, Any]:
        """Settings for a check of one trial: these steps are about times."""
        return {"measurement": self.settings.measurement.with_values(check_trials=1)}


class Step(NamedTuple):
    """A step: what it does with a context, the seconds that it usually gets, the least minutes in which it is taken."""

    run: Callable[[Context, Tell], None]
    seconds: float
    minutes: float = 0.0


# ------------------------------------------------------------------------------------------------ the machine


def machine(context: Context, tell: Tell) -> None:
    """Environment, state, and what the driver says that the device can do."""
    tell("environment", environment(1, context.device).model_dump(mode="json"))
    began = time.monotonic()
    tell("others", use_by_others(context.device) or "none seen")
    tell("state", read_state(context.device))
    tell("state asked, s", time.monotonic() - began)  # each verdict asks twice
    tell("memory of the host, GB", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)
    began = time.monotonic()
    keeper = _keeper(context)
    try:
        tell("keeper opened, s", time.monotonic() - began)
        tell("device", keeper.about)
    finally:
        keeper.close()
    with context.referee() as referee:
        began = time.monotonic()
        worker = referee.host.worker(RUNNER_ON_DEVICE, name="first", device=context.device)
        tell("first worker, s", time.monotonic() - began)
        tell("cold because", getattr(referee.host.sandbox, "cold_because", ""))
        worker.close()
        if context.device.is_gpu:
            with reported(tell, "ceilings"):
                found = Station.of(referee.host, context.device).examiner.ceilings()
                tell("ceilings", None if found is None else found.as_claim())


def _keeper(context: Context) -> Keeper:
    device = context.device
    return Keeper(device.library, images=device.images, variables=device.variables())


def walls(context: Context, tell: Tell) -> None:
    """What a process can do with memory that it was given: at which address, writing where it may only read."""
    keeper = _keeper(context)
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


# ------------------------------------------------------------------------------------------------ verdicts


def verdicts(context: Context, tell: Tell) -> None:
    """Right and wrong kernels, the seconds of everything, and replays beside the queue.

    Kernels get names that no earlier proof gave, so that none has been built before.
    """
    problem, threads = texts.problem_of(texts.SOFTMAX, small=context.small), 1 if context.small else 256
    began = time.monotonic()
    with context.referee() as referee:
        referee.host.worker(RUNNER_ON_DEVICE, name="first", device=context.device).close()
        Station.of(referee.host, context.device)
        tell("referee opened, s", time.monotonic() - began)
        began = time.monotonic()
        with referee.open(problem, backend="cuda", baselines=("eager",)) as session:
            tell("check set, s", time.monotonic() - began)
            tell("empty call, us", [1e3 * ms for ms in session.empty_call_ms("cuda")])
            kernels = [(f"cuda {number}", texts.cuda_kernel(_fresh(number), threads=threads)) for number in range(6)]
            others = [(f"triton {number}", texts.triton_kernel(_fresh(number))) for number in range(4)]
            wrong = ("wrong", texts.cuda_kernel(_fresh("wrong"), threads=threads, wrong=True))
            order = [*kernels[:2], wrong] if context.small else [*kernels[:2], *others[:2], wrong]
            for name, candidate in order:
                with reported(tell, name):
                    tell(name, _seconds(session, candidate))
            with reported(tell, "confirmation"):
                tell("confirmation", _seconds(session, kernels[0][1], Confirm(within_s=_CONFIRMED_S)))
            loaded = ("load_inline", texts.extension_kernel(_fresh("extension")))
            for name, candidate in [] if context.small else [*kernels[2:], *others[2:], loaded]:
                with reported(tell, name):
                    tell(name, _seconds(session, candidate))


def _fresh(name: object) -> str:
    return f"{secrets.token_hex(4)}_{name}"


def _seconds(session: ProblemSession, candidate: Candidate, depth: Search | Confirm | None = None) -> dict[str, Any]:
    began = time.monotonic()
    found = session.judge(candidate, depth)
    return {"seconds": time.monotonic() - began, "stages": found.verdict.seconds, **_times(found)}


def _times(evaluation: Evaluation) -> dict[str, Any]:
    verdict, timing = evaluation.verdict, evaluation.verdict.timing
    row: dict[str, Any] = {"status": verdict.status.value, "reason": verdict.reason}
    row |= {"notes": {f.rule: f.evidence for f in verdict.findings}}
    row |= {"artifacts": {name: text[-_MOST_ARTIFACT:] for name, text in evaluation.artifacts.items()}}
    eager = [sample.latency_ms for sample in evaluation.samples if sample.role == "eager"]
    if eager:
        quartiles = statistics.quantiles(eager, n=4) if len(eager) > 1 else eager * 3
        row |= {"eager_us": 1e3 * statistics.median(eager), "quartiles_us": [1e3 * q for q in quartiles]}
    if timing is not None:
        row |= {"candidate_us": 1e3 * timing.latency_ms.median, "process pairs": timing.processes}
        row |= {"speedup": {name: speedup.model_dump() for name, speedup in timing.speedup.items()}}
        row |= {"control": None if timing.control is None else timing.control.model_dump()}
    own = _OWN_CALL.search(row["notes"].get("device-clock", ""))
    if own is not None and timing is not None:
        queued, empty = map(float, own.groups())
        row["own process, us"] = {"call": queued, "empty call": empty}
        row["replay less own process, us"] = row["candidate_us"] - (queued - empty)
    return row


# ------------------------------------------------------------------------------------------------ the clock


def door(context: Context, tell: Tell) -> None:
    """What an empty call takes, by the bytes of its input and as large an output."""
    sizes = {"16 KB": 4, "512 KB": 128, "16 MB": 4096, "64 MB": 16384}
    with context.referee(**context.quick()) as referee:
        for name in ("16 KB",) if context.small else sizes:
            operator = texts.Operator(f"relu {name}", "torch.relu(x)", {"x": (sizes[name], 1024)})
            problem = texts.problem_of(operator, small=context.small)
            with reported(tell, name), referee.open(problem, backend="cuda", baselines=("eager",)) as session:
                mean, most = session.empty_call_ms("cuda")
                tell(name, {"mean_us": 1e3 * mean, "limit_us": 1e3 * most})


def accuracy(context: Context, tell: Tell) -> None:
    """Time eager operators by the referee and by a CUDA graph."""
    within = timed = 0
    with context.referee(**context.quick()) as referee:
        for operator in texts.OPERATORS[:2] if context.small else texts.OPERATORS:
            problem = texts.problem_of(operator, small=context.small)
            with reported(tell, operator.name):
                with referee.open(problem, backend="cuda", baselines=("eager",)) as session:
                    row = _times(session.judge(texts.reference_as_candidate(problem), control=True))
                row["graph_us"] = graph = _graph_us(problem, context.device)
                if "eager_us" in row:
                    apart = row["eager_us"] - graph
                    timed, within = timed + 1, within + (abs(apart) <= 0.05 * graph + 1.5)
                    row |= {"error": apart / graph, "error_us": apart}
                tell(operator.name, row)
                tell("in all", {"timed": timed, "within 5% and 1.5 us": within})


def _graph_us(problem: Problem, device: Device) -> float:
    """Microseconds of a call of our own problem in a CUDA graph; on the CPU, of a call."""
    import torch

    names: dict[str, Any] = {}
    exec(problem.source, names)  # the proof's own text
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # as in the referee's workers
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
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                model(*inputs)
        times, replays, warm = [], 10, time.monotonic() + 0.05
        while time.monotonic() < warm:
            graph.replay()
            torch.cuda.synchronize()
        for _ in range(12):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            for _ in range(replays):  # a graph's own launch costs microseconds where nothing runs before it
                graph.replay()
            after.record()
            torch.cuda.synchronize()
            times.append(1e3 * before.elapsed_time(after) / (calls * replays))
        return float(statistics.median(times))


def same_code(context: Context, tell: Tell) -> None:
    """The references of built-in problems as their own candidates: how often one is called faster."""
    faster = rows = close = timeable = 0
    problems = [texts.problem_of(texts.SOFTMAX, small=True)] if context.small else _small_problems(40)
    with context.referee(**context.quick()) as referee:
        for problem in problems:
            with reported(tell, problem.id):
                with referee.open(problem, backend="cuda", baselines=("eager",)) as session:
                    row = _times(session.judge(texts.reference_as_candidate(problem), control=True))
                speedup = row.get("speedup", {}).get("eager")
                if speedup is not None:
                    row["estimate"] = estimate = row["eager_us"] / row["candidate_us"]
                    rows, faster = rows + 1, faster + speedup["faster"]
                    close += abs(estimate - 1.0) <= 0.02
                    timeable += row["eager_us"] >= 10.0  # what takes less is never called faster
                tell(problem.id, row)
                counts = {"timed": rows, "of 10 us and more": timeable, "called faster": faster, "within 2%": close}
                tell("in all", counts)


def _small_problems(count: int) -> list[Problem]:
    """Built-in problems on the last of their shapes for a GPU, which is the smallest."""
    found = []
    for problem in list(load_suite(_SUITE))[:count]:
        shapes = problem.meta.variants_for("gpu")
        meta = problem.meta.model_copy(update={"variants": {**problem.meta.variants, "gpu": shapes[-1:]}})
        found.append(problem.model_copy(update={"meta": meta}))
    return found


def confirmations(context: Context, tell: Tell) -> None:
    """Confirmations of a kernel: how often the interval of the reference beside itself covers 1.

    They go on until the step's time is over: dozens, which a coverage needs, take a run of this step alone.
    """
    problem, threads = texts.problem_of(texts.SOFTMAX, small=context.small), 1 if context.small else 256
    made = covered = 0
    with context.referee(**context.quick()) as referee:
        with referee.open(problem, backend="cuda", baselines=("eager",)) as session:
            for number in range(1 if context.small else _MOST_CONFIRMATIONS):
                with reported(tell, f"confirmation {number}"):
                    candidate = texts.cuda_kernel(_fresh(number), threads=threads)
                    row = _seconds(session, candidate, Confirm(within_s=_CONFIRMED_S))
                    tell(f"confirmation {number}", row)
                    if control := row.get("control"):
                        made, covered = made + 1, covered + (control["low"] <= 1.0 <= control["high"])
                        tell("in all", {"confirmations": made, "cover 1": covered})


def found_115(context: Context, tell: Tell) -> None:
    """References that take 1.15 times as long as a replayed kernel: how often that is found."""
    with context.referee(**context.quick()) as referee:
        for name, (times, rows) in {"short": (3, 64)}.items() if context.small else _CHAINS.items():
            with reported(tell, name):
                _found_115(context, referee, tell, name, texts.repeated(times, rows), times)


def _found_115(context: Context, referee: Referee, tell: Tell, name: str, operator: texts.Operator, times: int) -> None:
    problem, threads = texts.problem_of(operator, small=context.small), 1 if context.small else 256
    trials = found = 0
    with referee.open(problem, backend="cuda", baselines=("eager",)) as session:
        first = _times(session.judge(texts.chain_kernel(problem, _fresh("first"), times=times, threads=threads)))
        tell(f"{name}, as often", first)
        if "candidate_us" not in first:
            return
        ratio = first["eager_us"] / first["candidate_us"]
        fewer = min(max(1, round(times * ratio / 1.15)), _MOST_TIMES * times)
        tell(f"{name}, truth", {"launches": fewer, "speedup": ratio * times / fewer})
        for number in range(1 if context.small else 10):
            with reported(tell, f"{name} {number}"):
                candidate = texts.chain_kernel(problem, _fresh(number), times=fewer, threads=threads)
                row = _times(session.judge(candidate))
                speedup = row.get("speedup", {}).get("eager")
                trials, found = trials + 1, found + bool(speedup and speedup["faster"])
                tell(f"{name} {number}", row)
                tell(f"{name}, in all", {"trials": trials, "found": found})


def libraries(context: Context, tell: Tell) -> None:
    """Kernels beside torch's own, and by which clock they are timed."""
    with context.referee() as referee:
        for operator in texts.HYBRIDS[:1] if context.small else texts.HYBRIDS:
            problem = texts.problem_of(operator, small=context.small)
            hybrid = texts.hybrid_kernel(problem, operator, _fresh("hybrid"), threads=1 if context.small else 256)
            with reported(tell, operator.name), referee.open(problem, backend="cuda", baselines=("eager",)) as session:
                tell(operator.name, _seconds(session, hybrid))


def host_memory(context: Context, tell: Tell) -> None:
    """The memory of the referee's process after sessions with larger and larger tensors."""
    sizes = {"1 MB": 256, "16 MB": 4096, "64 MB": 16384}
    with context.referee() as referee:
        for name in ("1 MB",) if context.small else sizes:
            operator = texts.Operator(f"relu {name}", "torch.relu(x)", {"x": (sizes[name], 1024)})
            problem = texts.problem_of(operator, small=context.small)
            with reported(tell, name), referee.open(problem, backend="cuda", baselines=("eager",)):
                tell(name, {"most resident, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024})


# ------------------------------------------------------------------------------------------------ others


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
        for number in range(2):
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
    backends: Sequence[Backend] = ("cuda",) if context.small else ("cuda", "triton")
    honest = corpus.honest()
    chosen = [case for case in (*corpus.attacks(), *honest) if case.backend in backends]
    many = collections.Counter((case.problem, case.backend) for case in chosen)
    chosen.sort(key=lambda c: (c.backend != "cuda", -many[c.problem, c.backend], c.problem))  # one session for each
    with context.referee(call_timeout_s=_ATTACKED_S) as referee:
        for (name, backend), cases in itertools.groupby(
            chosen[:2] if context.small else chosen, key=lambda case: (case.problem, case.backend)
        ):
            problem = corpus.problem_of(name)
            problem = problem if context.small else _for_a_gpu(problem)
            opened = referee.open(problem, backend=backend, baselines=("eager",))
            with reported(tell, f"{name}, {backend}"), opened as session:
                for case in cases:
                    with reported(tell, case.name):
                        candidate = Candidate(problem_id=problem.id, source=case.source, backend=case.backend)
                        found = session.judge(candidate).verdict
                        called = found.timing is not None and any(s.faster for s in found.timing.speedup.values())
                        passed += case not in honest and found.passed
                        faster += case not in honest and called
                        refused += case in honest and not found.passed
                        tell(case.name, {"status": found.status.value, "reason": found.reason, "faster": called})
                        counts = {"attacks passed": passed, "attacks called faster": faster, "honest refused": refused}
                        tell("in all", counts)


def _for_a_gpu(problem: Problem) -> Problem:
    """A problem that declares no shapes for a GPU, with a first size so large that a call can be timed."""
    if "gpu" in problem.meta.variants:
        return problem
    first, *more = problem.meta.variants_for("cpu")
    sizes = {name: value for name, value in first.items() if type(value) is int}
    if not sizes:
        return problem
    name, elements = next(iter(sizes)), math.prod(sizes.values())
    larger = {**first, name: sizes[name] * max(_TIMED_ELEMENTS // max(elements, 1), 1)}
    meta = problem.meta.model_copy(update={"variants": {**problem.meta.variants, "gpu": (larger, *more[:1])}})
    return problem.model_copy(update={"meta": meta})


def suite(context: Context, tell: Tell) -> None:
    """The code generator's Triton kernels for built-in problems, against eager and torch.compile."""
    if not context.device.is_gpu:
        tell("left out", "Triton has no kernels for a stand-in")
        return
    try:
        from kernelwright.campaign import Campaign
        from kernelwright.store import Store
    except ImportError as error:
        tell("left out", str(error))
        return
    settings = context.settings.with_values(backend="triton", rounds=1, baselines=("eager", "compile"))
    with Store.open(settings.store) as store:
        for problem in list(load_suite(_SUITE))[:20]:
            with reported(tell, problem.id):
                row = Campaign(settings, store).run([problem]).rows[0].model_dump(mode="json")
                tell(problem.id, {name: row[name] for name in ("stage", "status", "latency_ms", "speedup", "reason")})


def profiles(context: Context, tell: Tell) -> None:
    """What compute-sanitizer and the profilers say of a winner, in a confirmation without a limit."""
    problem, threads = texts.problem_of(texts.SOFTMAX, small=context.small), 1 if context.small else 256
    with context.referee() as referee, referee.open(problem, backend="cuda", baselines=("eager",)) as session:
        found = session.judge(texts.cuda_kernel(_fresh("0"), threads=threads), Confirm())
        profile = found.verdict.profile and found.verdict.profile.model_dump(mode="json")
        tell("cuda", {**_times(found), "stages": found.verdict.seconds, "profile": profile})


def _on_device(experiment: Callable[[Device, Tell], None]) -> Callable[[Context, Tell], None]:
    return lambda context, tell: experiment(context.device, tell)


STEPS = {
    "machine": Step(machine, 25.0),
    "verdicts": Step(verdicts, 110.0),
    "accuracy": Step(accuracy, 90.0),
    "1.15 times": Step(found_115, 45.0),
    "same code": Step(same_code, 45.0),
    "attacks": Step(attacks, 60.0),
    "confirmations": Step(confirmations, 60.0),
    "libraries": Step(libraries, 30.0),
    "launches": Step(_on_device(experiments.logged), 10.0),
    "fresh processes": Step(fresh_processes, 90.0),
    **{name: Step(_on_device(run), 20.0, _EXPERIMENTS_MINUTES) for name, run in experiments.EXPERIMENTS.items()},
    "door": Step(door, 25.0),
    "walls": Step(walls, 10.0),
    "memory": Step(host_memory, 20.0),
    "profiles": Step(profiles, 60.0),
    "suite": Step(suite, 120.0),
}
"""In order of worth. Each step may take its seconds, or its share of the time that is left, if that is longer."""
