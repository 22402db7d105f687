"""The generator's Triton products of halves beside ``torch.matmul``, over 1,000 shapes M, N, K from 64 to 16384.

Measured are our kernel by the default schedule, a few other schedules, torch, and cuBLASLt, in two modes: ``offline``
(calls back to back) and ``server`` (a pause and a flushed L2 before each call). ``--report`` prints geometric means
over torch of the default, of the best schedule, and of a dispatcher, which knows only the nearest other shapes. Shapes
come in an order that is spread out from the start, each as one line of ``--output``; a later run goes on from there.
Ends with 3 without a GPU. ``--rehearse`` runs a few tiny shapes in the interpreter, whose times mean nothing.

    python benchmarks/hgemm.py --minutes 60 --output benchmarks/results/<device>/hgemm.jsonl
    python benchmarks/hgemm.py --report --output benchmarks/results/<device>/hgemm.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import math
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kernelwright.codegen import Graph, generate
from kernelwright.codegen._capture import capture_entry
from kernelwright.evaluator import find_device

NO_DEVICE = 3
DTYPES = ("float16", "bfloat16")
MODES = ("offline", "server")
SIZES = (64, 96, 257, 512, 1000, 1536, 2048, 4096, 7168, 16384)
TINY = (16, 24, 33)
TINY_CELLS = 2
NEIGHBOURS = 3  # shapes that the dispatcher asks
LEVEL = 0.99  # of torch's speed: level with it
SAMPLED = 64  # rows and columns that are compared with exact ones
FLUSHED = 256 << 20  # bytes that are written before a call of the server
PAUSE = 0.001  # seconds
ROUNDS = 11
GRAPH_MS = 2.0  # of calls in one graph, offline

Shape = tuple[int, int, int]
Call = Callable[[], torch.Tensor]


def tiles(m: int, n: int, k: int, warps: int, stages: int, **more: Any) -> dict[str, Any]:
    """A schedule of our kernel."""
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GEMM_WARPS": warps, "GEMM_STAGES": stages, **more}


DESCRIBED = {"descriptors": True, "persistent": True}
SCHEDULES: dict[str, dict[str, Any]] = {
    "default": {},
    "64x64": tiles(64, 64, 64, 4, 4),
    "64x128": tiles(64, 128, 64, 4, 4),
    "128x64": tiles(128, 64, 64, 4, 4),
    "128x128": tiles(128, 128, 64, 8, 3),
    "128x128, 4 warps": tiles(128, 128, 64, 4, 4),
    "128x256": tiles(128, 256, 64, 8, 3),
    "128x128, descriptors": tiles(128, 128, 64, 8, 4, **DESCRIBED),
    "128x256, descriptors": tiles(128, 256, 64, 8, 4, **DESCRIBED),
    "64x64, split": tiles(64, 64, 64, 4, 4, splits=4),
    "128x128, split": tiles(128, 128, 64, 8, 3, splits=4),
}

PROBLEM = """import torch
from torch import nn
M, N, K = {m}, {n}, {k}
class Model(nn.Module):
    def forward(self, x, w):
        return x @ w
def get_inputs():
    return [torch.randn(M, K).to(torch.{dtype}), torch.randn(K, N).to(torch.{dtype})]
def get_init_inputs():
    return []
"""
PLACES = (7, 11, 13)  # captured in place of the shape that a graph is for
OTHERS = (40, 88, 104)  # a second shape keeps sizes from being constants; rows of it are aligned


# ------------------------------------------------------------------------------------------------ shapes


def ordered(sizes: Sequence[int]) -> list[Shape]:
    """Every shape of a grid, so that the first ones are spread out evenly.

    They follow the additive recurrence whose steps are powers of the root of x^4 = x + 1 (the R3 sequence of
    M. Roberts, "The Unreasonable Effectiveness of Quasirandom Sequences", 2018).
    """
    root, count = 1.2207440846057596, len(sizes)
    cells: dict[Shape, None] = {}
    for step in range(1, 40 * count**3):
        m, n, k = (sizes[int((0.5 + step / root**power) % 1 * count)] for power in (1, 2, 3))
        cells.setdefault((m, n, k))
    cells |= dict.fromkeys(itertools.product(sizes, repeat=3))
    return list(cells)


# ------------------------------------------------------------------------------------------------ kernels


class Kernels:
    """Our kernels, one module for each text."""

    def __init__(self, dtypes: Iterable[str], folder: Path) -> None:
        self.folder = folder
        self.captured = {dtype: self._capture(dtype) for dtype in dtypes}
        self.modules: dict[str, Any] = {}

    def sources(self, dtype: str, shape: Shape) -> dict[str, str]:
        """The candidate files of a shape by schedule."""
        found: dict[str, str] = {}
        graph = self._graph(dtype, shape)
        for name, schedule in SCHEDULES.items():
            text = generate(graph, {"gemm": "own", **schedule}, backend="triton").source
            found[name] = re.sub(r'"""matmul.*"""', '"""matmul."""', text)  # the shape in it would compile it anew
        return found

    def load(self, source: str) -> Callable[..., torch.Tensor]:
        """The forward of a candidate file."""
        if source not in self.modules:
            path = self.folder / f"product_{len(self.modules)}.py"
            path.write_text(source)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.modules[source] = module.ModelNew()
        return self.modules[source]

    def _graph(self, dtype: str, shape: Shape) -> Graph:
        """The graph of a shape: the one that was captured, with other sizes."""
        text = self.captured[dtype]
        for place, size in zip(PLACES, shape, strict=True):
            text = text.replace(f'"sizes": [{place}, ', f'"sizes": [{size}, ')
        return Graph.from_json(text)

    @staticmethod
    def _capture(dtype: str) -> str:
        m, n, k = OTHERS
        variants = [dict(zip("MNK", sizes, strict=True)) for sizes in (PLACES, OTHERS)]
        source = PROBLEM.format(dtype=dtype, m=m, n=n, k=k)
        return json.dumps(capture_entry({"source": source, "variant": variants[0], "variants": variants}))


# ------------------------------------------------------------------------------------------------ clocks


class Gpu:
    """Times calls by CUDA graphs and events: what Python does between launches takes no part."""

    device = "cuda"

    def __init__(self) -> None:
        self.cache = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")

    def prepared(self, call: Call, mode: str) -> tuple[Any, int]:
        """A graph of calls, and how many."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            begin, end = self._events()
            call()
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        taken = max(begin.elapsed_time(end), 1e-3)
        calls = min(max(math.ceil(GRAPH_MS / taken), 1), 100) if mode == "offline" else 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return graph, calls

    def sample(self, prepared: tuple[Any, int], mode: str) -> float:
        """Milliseconds of one call."""
        graph, calls = prepared
        if mode == "server":
            self.cache.zero_()
            torch.cuda.synchronize()
            time.sleep(PAUSE)
        begin, end = self._events()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / calls

    @staticmethod
    def _events() -> tuple[Any, Any]:
        return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


class Rehearsal:
    """Stands in for the GPU: calls in Triton's interpreter."""

    device = "cpu"

    def prepared(self, call: Call, mode: str) -> tuple[Any, int]:
        """The call itself."""
        return call, 1

    def sample(self, prepared: tuple[Any, int], mode: str) -> float:
        """Milliseconds of one call, of the interpreter."""
        begin = time.perf_counter()
        prepared[0]()
        return (time.perf_counter() - begin) * 1e3


@contextlib.contextmanager
def preferring(library: str) -> Iterator[None]:
    """Within it, torch is told which library computes products.

    Raises:
        RuntimeError: this torch cannot be told.
    """
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(library)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


# ------------------------------------------------------------------------------------------------ one shape


class Setup(NamedTuple):
    """What every shape is measured with."""

    kernels: Kernels
    clock: Gpu | Rehearsal
    modes: Sequence[str]
    rounds: int


def measured(setup: Setup, dtype: str, shape: Shape) -> dict[str, Any]:
    """The record of one shape: quartiles in milliseconds by mode and contestant, and what failed."""
    m, n, k = shape
    random.seed(m * 31 + n * 17 + k)
    torch.manual_seed(random.randrange(1 << 30))
    x = torch.randn(m, k, device=setup.clock.device).to(getattr(torch, dtype))
    w = torch.randn(k, n, device=setup.clock.device).to(getattr(torch, dtype))
    calls: dict[str, Call] = {"torch": lambda: torch.matmul(x, w), "cublaslt": lambda: torch.matmul(x, w)}
    failed: dict[str, str] = {}
    error_of = errors_against(x, w)
    allowed = error_of(torch.matmul(x, w))
    sources = setup.kernels.sources(dtype, shape)
    first = {source: name for name, source in reversed(sources.items())}  # schedules may have the same text
    for source, name in first.items():
        try:
            forward = setup.kernels.load(source)
            off = error_of(forward(x, w))
        except Exception as error:  # noqa: BLE001 - a schedule that the device refuses is a result
            failed[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        if off <= 1.2 * allowed + 1e-6:
            calls[name] = lambda forward=forward: forward(x, w)
        else:
            failed[name] = f"wrong: an error of {off:.2g}, torch's is {allowed:.2g}"
    times: dict[str, dict[str, list[float]]] = {}
    for mode in setup.modes:
        found = timed(setup, calls, mode, failed)
        times[mode] = found | {name: found[first[s]] for name, s in sources.items() if first[s] in found}
    return {"dtype": dtype, "shape": list(shape), "times": times, "failed": failed}


def errors_against(x: torch.Tensor, w: torch.Tensor) -> Callable[[torch.Tensor], float]:
    """What gives a product's relative error in sampled rows and columns, against float64."""
    rows = torch.randint(len(x), (SAMPLED,), device=x.device)
    columns = torch.randint(w.shape[1], (SAMPLED,), device=x.device)
    exact = x[rows].double() @ w[:, columns].double()
    return lambda y: float((y[rows][:, columns].double() - exact).norm() / exact.norm())


def timed(setup: Setup, calls: Mapping[str, Call], mode: str, failed: dict[str, str]) -> dict[str, list[float]]:
    """The quartiles of each contestant. They take turns, in another order in each round."""
    prepared = {}
    for name, call in calls.items():
        try:
            with preferring("cublaslt") if name == "cublaslt" else contextlib.nullcontext():
                prepared[name] = setup.clock.prepared(call, mode)
        except Exception as error:  # noqa: BLE001
            failed[name] = f"{type(error).__name__}: {error}"[:200]
    samples: dict[str, list[float]] = {name: [] for name in prepared}
    for _ in range(setup.rounds):
        for name in random.sample(list(prepared), len(prepared)):
            samples[name].append(setup.clock.sample(prepared[name], mode))
    found = {name: statistics.quantiles(taken, n=4, method="inclusive") for name, taken in samples.items()}
    return {name: [float(f"{q:.4g}") for q in quartiles] for name, quartiles in found.items()}


# ------------------------------------------------------------------------------------------------ records


def read(path: Path | None) -> list[dict[str, Any]]:
    """The records of a file. A last line that is half written is cut off."""
    if path is None or not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    return [json.loads(line) for line in whole.splitlines()]


def sweep(arguments: argparse.Namespace, setup: Setup, shapes: Iterable[Shape]) -> None:
    """Measure the shapes that the output does not have yet, until the time is over."""
    begin, longest = time.monotonic(), 0.0
    rehearsal = isinstance(setup.clock, Rehearsal)
    done = {(r["dtype"], tuple(r["shape"])) for r in read(arguments.output) if r["rehearsal"] == rehearsal}
    for shape, dtype in itertools.product(shapes, arguments.dtype):
        if (dtype, shape) in done:
            continue
        started = time.monotonic()
        if arguments.minutes is not None and started - begin + longest > arguments.minutes * 60:
            return
        record = {**measured(setup, dtype, shape), "rehearsal": rehearsal}
        longest = max(longest, time.monotonic() - started)
        line = json.dumps(record)
        if arguments.output is None:
            print(line, flush=True)
            continue
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        with arguments.output.open("a") as file:
            file.write(line + "\n")


# ------------------------------------------------------------------------------------------------ report


def ours(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The medians of our schedules."""
    return {name: times[name][1] for name in SCHEDULES if name in times}


def dispatched(record: Mapping[str, Any], others: Sequence[Mapping[str, Any]], mode: str) -> str:
    """The schedule of a shape that is best on the nearest other shapes, as far as this shape has it."""

    def distance(other: Mapping[str, Any]) -> float:
        pairs = zip(record["shape"], other["shape"], strict=True)
        return sum(math.log2(a / b) ** 2 for a, b in pairs)

    near = sorted((o for o in others if o is not record), key=distance)[:NEIGHBOURS]
    mine = ours(record["times"][mode])
    scores: dict[str, float] = {}
    for name in mine:
        ratios = [min(known.values()) / known[name] for o in near if name in (known := ours(o["times"][mode]))]
        scores[name] = statistics.fmean(ratios) if ratios else 0.0
    return max(scores, key=scores.__getitem__)


def report(records: Sequence[Mapping[str, Any]]) -> str:
    """The table: over each dtype and mode, speed relative to ``torch.matmul``."""
    lines = ["| dtype | mode | shapes | default | best | dispatcher | cuBLASLt | at least level | worst of the best |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for dtype, mode in itertools.product(DTYPES, MODES):
        found = [r for r in records if r["dtype"] == dtype and ours(r["times"].get(mode, {}))]
        if not found:
            continue
        ratios: dict[str, list[float]] = {"default": [], "best": [], "dispatcher": [], "cublaslt": []}
        for record in found:
            times = record["times"][mode]
            torch_time, mine = times["torch"][1], ours(times)
            ratios["best"].append(torch_time / min(mine.values()))
            ratios["dispatcher"].append(torch_time / mine[dispatched(record, found, mode)])
            ratios["default"] += [torch_time / mine["default"]] if "default" in mine else []
            ratios["cublaslt"] += [torch_time / times["cublaslt"][1]] if "cublaslt" in times else []
        means = [f"{statistics.geometric_mean(r):.3f}" if r else "" for r in ratios.values()]
        level = sum(ratio >= LEVEL for ratio in ratios["dispatcher"]) / len(found)
        worst = sorted(zip(ratios["best"], (r["shape"] for r in found), strict=True))[:3]
        names = ", ".join(f"{'x'.join(map(str, shape))} {ratio:.2f}" for ratio, shape in worst)
        lines.append(f"| {dtype} | {mode} | {len(found)} | {' | '.join(means)} | {level:.0%} | {names} |")
    lines.append("")
    lines.append("Geometric means of torch.matmul's time over each one's; the share is the dispatcher's.")
    if any(record["rehearsal"] for record in records):
        lines.append("A rehearsal in the interpreter: these times mean nothing.")
    wrong = [(r["shape"], name) for r in records for name, why in r["failed"].items() if why.startswith("wrong")]
    lines += [f"Wrong: {'x'.join(map(str, shape))} by {name}." for shape, name in wrong]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ the command


def main() -> int:
    """Measure, or report on what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--output", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--report", action="store_true", help="print the table of what --output has")
    parser.add_argument("--rehearse", action="store_true", help="a few tiny shapes in the interpreter")
    arguments = parser.parse_args()
    if arguments.report:
        print(report(read(arguments.output)))
        return 0
    if not arguments.rehearse and find_device() is None:
        print("this benchmark needs an NVIDIA GPU: nvidia-smi shows none that may be used here", file=sys.stderr)
        return NO_DEVICE
    with tempfile.TemporaryDirectory() as made, torch.no_grad():
        if arguments.rehearse:
            rehearse(arguments, Path(made))
        else:
            setup = Setup(Kernels(arguments.dtype, Path(made)), Gpu(), arguments.mode, ROUNDS)
            sweep(arguments, setup, ordered(SIZES))
    return 0


def rehearse(arguments: argparse.Namespace, folder: Path) -> None:
    """The same with a few tiny shapes, in the interpreter."""
    from kernelwright.evaluator.worker.triton.interpreter import cuda_as_cpu, install

    install()
    setup = Setup(Kernels(arguments.dtype, folder), Rehearsal(), arguments.mode, 2)
    with cuda_as_cpu():
        sweep(arguments, setup, ordered(TINY)[:TINY_CELLS])


if __name__ == "__main__":
    sys.exit(main())
