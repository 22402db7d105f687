"""What a GPU says: winners of the suite against eager and torch.compile, and how many verdicts a minute there are.

Parts, each a flag; without any, all of them:

- ``--winners``: the offline coder's Triton kernels for problems of the built-in suite (``--problems``, default all),
  each with its speedup over the baselines. Nothing of it is confirmed; see docs/measurement.md.
- ``--throughput``: verdicts a minute over the same kernels, each new to the caches: this referee with ``inline.cuda``
  and with ``load_inline``, one after the other and with the next one built ahead; beside it the flow that
  KernelBench documents: a fresh process for every candidate, a ``load_inline`` build by torch itself, five correctness
  trials by ``allclose``, a hundred calls timed by events.

Ends with 3 where there is no GPU.

    python benchmarks/gpu.py --output benchmarks/results/<device>/gpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from kernelwright.campaign import Campaign
from kernelwright.config import Settings
from kernelwright.datasets import find_problem, load_suite, parse_problem
from kernelwright.evaluator import Device, ProblemSession, Referee, environment, find_device, read_state
from kernelwright.records import Candidate, Problem
from kernelwright.store import Store

NO_DEVICE = 3
BASELINES = ("eager", "compile", "compile-max-autotune", "compile-max-autotune-no-cudagraphs")
SUITE = "kernelwright"
PROBLEM = """
import torch
from torch import nn

PROBLEM = {
    "category": "softmax",
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {"gpu": [{"ROWS": 4096, "COLS": 1024}, {"ROWS": 37, "COLS": 131}]},
}
ROWS = 4096
COLS = 1024


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""
KERNEL = r"""
// NUMBER
extern "C" __global__ void softmax(const float* x, float* y, int cols) {
  __shared__ float partial[8];
  const float* a = x + (long long)blockIdx.x * cols;
  float* b = y + (long long)blockIdx.x * cols;
  float largest = -INFINITY, sum = 0;
  for (int j = threadIdx.x; j < cols; j += 256) largest = fmaxf(largest, a[j]);
  for (int o = 16; o > 0; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, o));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int w = 0; w < 8; w++) largest = fmaxf(largest, partial[w]);
  __syncthreads();
  for (int j = threadIdx.x; j < cols; j += 256) sum += expf(a[j] - largest);
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < 8; w++) sum += partial[w];
  for (int j = threadIdx.x; j < cols; j += 256) b[j] = expf(a[j] - largest) / sum;
}
"""
INLINE = f'''
import torch
from torch import nn

from kernelwright.inline import cuda

kernel = cuda(r"""{KERNEL}""", "softmax")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[x.shape[0], 256](x, y, x.shape[1])
        return y
'''
EXTENSION = f'''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""{KERNEL.replace('extern "C" ', "")}
torch::Tensor forward(torch::Tensor x) {{{{
  auto y = torch::empty_like(x);
  softmax<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}}}}
"""
module = load_inline(
    name="softmax_NUMBER",
    cpp_sources="torch::Tensor forward(torch::Tensor x);",
    cuda_sources=SOURCE,
    functions=["forward"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return module.forward(x)
'''.replace("{{", "{").replace("}}", "}")
FRESH_PROCESS = """
import importlib.util, sys, torch


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference, candidate = load(sys.argv[1], "reference"), load(sys.argv[2], "candidate")
model = reference.Model(*reference.get_init_inputs()).cuda()
new = candidate.ModelNew(*reference.get_init_inputs()).cuda()
with torch.no_grad():
    for trial in range(5):
        torch.manual_seed(trial)
        inputs = [x.cuda() for x in reference.get_inputs()]
        assert torch.allclose(model(*inputs), new(*inputs), atol=1e-2, rtol=1e-2)
    times = []
    for call in range(103):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        new(*inputs)
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after))
print(sum(times[3:]) / 100)
"""


def winners(problems: list[Problem], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """One row for each problem: its winner's latency and speedups, or why there is none."""
    settings = Settings.load(
        flags={"store": folder / "winners.db", "backend": "triton", "rounds": rounds, "baselines": BASELINES}
    )
    rows = []
    with Store.open(settings.store) as store:
        for problem in problems:
            result = Campaign(settings, store).run([problem])
            row = result.rows[0].model_dump(mode="json")
            rows.append({name: row[name] for name in ("problem", "stage", "status", "latency_ms", "speedup", "reason")})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def throughput(verdicts: int, folder: Path) -> dict[str, Any]:
    """Seconds a verdict, by way of building and of evaluating."""
    problem = parse_problem(PROBLEM, id="benchmark/level1/softmax", suite="benchmark", level=1, name="softmax")
    settings = Settings.load(flags={"measurement": {"looks": (12,)}, "cache_dir": folder / "cache"})
    found = {}
    with Referee(settings) as referee, referee.open(problem, baselines=("eager",)) as session:
        for name, source in (("inline.cuda", INLINE), ("load_inline", EXTENSION)):
            found[name] = summary(verdict_seconds(session, problem, source, verdicts, ahead=False))
            found[f"{name}, built ahead"] = summary(verdict_seconds(session, problem, source, verdicts, ahead=True))
    found["fresh process, load_inline, allclose, events"] = summary(fresh_processes(problem, verdicts, folder))
    return found


def verdict_seconds(
    session: ProblemSession, problem: Problem, source: str, verdicts: int, *, ahead: bool
) -> list[float]:
    """Seconds of each verdict but the first two, which warm caches.

    ``ahead``: the next one is built while one is timed.
    """
    texts = [source.replace("NUMBER", f"{'a' * ahead}{number}") for number in range(verdicts + 2)]
    candidates = [Candidate(problem_id=problem.id, source=text, backend="cuda") for text in texts]
    seconds = []
    for number, candidate in enumerate(candidates):
        started = time.monotonic()
        if ahead:
            for coming in candidates[number : number + 2]:
                session.build_ahead(coming)
        verdict = session.judge(candidate).verdict
        if not verdict.passed:
            raise SystemExit(f"{verdict.status} {verdict.reason}")
        seconds.append(time.monotonic() - started)
    return seconds[2:]


def fresh_processes(problem: Problem, verdicts: int, folder: Path) -> list[float]:
    """Seconds of each candidate the way that KernelBench's documentation describes."""
    (folder / "reference.py").write_text(problem.source)
    (folder / "fresh.py").write_text(FRESH_PROCESS)
    seconds = []
    for number in range(verdicts):
        (folder / "candidate.py").write_text(EXTENSION.replace("NUMBER", f"f{number}"))
        command = [sys.executable, "fresh.py", "reference.py", "candidate.py"]
        started = time.monotonic()
        env = {**os.environ, "TORCH_EXTENSIONS_DIR": str(folder / "extensions")}
        subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
        seconds.append(time.monotonic() - started)
    return seconds


def summary(seconds: list[float]) -> dict[str, Any]:
    """Median, and verdicts a minute."""
    return {
        "median_s": median(seconds),
        "verdicts": len(seconds),
        "verdicts_per_minute": 60 * len(seconds) / sum(seconds),
    }


def main() -> int:
    """Run the parts that were asked for and write what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--winners", action="store_true")
    parser.add_argument("--throughput", action="store_true")
    parser.add_argument("--problems", nargs="*", default=[], metavar="P")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--verdicts", type=int, default=8)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = find_device()
    if device is None:
        print("this benchmark needs an NVIDIA GPU: nvidia-smi shows none that may be used here", file=sys.stderr)
        return NO_DEVICE
    return run(arguments, device)


def run(arguments: argparse.Namespace, device: Device) -> int:
    """The parts on ``device``."""
    everything = not (arguments.winners or arguments.throughput)
    report: dict[str, Any] = {"environment": environment(1, device).model_dump(), "state before": read_state(device)}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if everything or arguments.throughput:
            report["throughput"] = throughput(arguments.verdicts, folder)
        if everything or arguments.winners:
            named = [find_problem(name) for name in arguments.problems] or list(load_suite(SUITE))
            report["winners"] = winners(named, arguments.rounds, folder)
    report["state after"] = read_state(device)
    text = json.dumps(report, indent=1, sort_keys=True)
    print(text)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
