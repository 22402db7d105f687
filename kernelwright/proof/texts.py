"""Problems and kernels of the proof, as text."""

from __future__ import annotations

from typing import NamedTuple

from kernelwright.datasets import parse_problem
from kernelwright.records import Candidate, Problem

_PROBLEM = """
import torch
from torch import nn

PROBLEM = {{
    "category": "elementwise",
    "inputs": {{{domains}}},
    "variants": {{"gpu": [{{}}], "cpu": [{{}}], "interpreter": [{{}}]}},
}}


class Model(nn.Module):
    def forward(self, {arguments}):
        return {expression}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


class Operator(NamedTuple):
    """An eager operator: an expression of its arguments, and their shapes."""

    name: str
    expression: str
    shapes: dict[str, tuple[int, ...]]


OPERATORS = (
    Operator("relu 8 MB", "torch.relu(x)", {"x": (2048, 1024)}),
    Operator("softmax 16 MB", "torch.softmax(x, -1)", {"x": (4096, 1024)}),
    Operator("matmul 2048", "x @ y", {"x": (2048, 2048), "y": (2048, 2048)}),
    Operator("sum 16 MB", "x.sum(-1)", {"x": (4096, 1024)}),
    Operator("layer norm 16 MB", "torch.nn.functional.layer_norm(x, x.shape[-1:])", {"x": (4096, 1024)}),
    Operator("matmul 5120", "x @ y", {"x": (5120, 5120), "y": (5120, 5120)}),
    Operator("gelu 64 MB", "torch.nn.functional.gelu(x)", {"x": (16384, 1024)}),
    Operator("cumsum 16 MB", "x.cumsum(-1)", {"x": (4096, 1024)}),
    Operator("add 8 MB", "x + y", {"x": (1024, 1024), "y": (1024, 1024)}),
    Operator(
        "convolution 56 MB",
        "torch.nn.functional.conv2d(x, y, padding=1)",
        {"x": (32, 64, 56, 56), "y": (64, 64, 3, 3)},
    ),
)


def problem_of(operator: Operator, *, small: bool) -> Problem:
    """The problem of an operator; ``small``: in a few numbers, for a rehearsal."""
    shapes = {name: _smaller(shape) if small else shape for name, shape in operator.shapes.items()}
    text = _PROBLEM.format(
        domains=", ".join(f'"{name}": {{"fill": "normal", "low": -100.0, "high": 100.0}}' for name in shapes),
        arguments=", ".join(shapes),
        expression=operator.expression,
        inputs=", ".join(f"torch.randn({', '.join(map(str, shape))})" for shape in shapes.values()),
    )
    name = operator.name.replace(" ", "_").lower()
    return parse_problem(text, id=f"proof/level1/{name}", suite="proof", level=1, name=name)


def _smaller(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size if size <= 8 else min(size, 64) for size in shape)


def reference_as_candidate(problem: Problem) -> Candidate:
    """The reference itself as a candidate, for a control."""
    source = problem.source.replace("class Model(", "class ModelNew(")
    return Candidate(problem_id=problem.id, source=source, backend="cuda")


def repeated(times: int, rows: int) -> Operator:
    """A rectifier, applied so often to the same numbers: ``rows`` of 1,024."""
    return Operator(f"relu {times} times", "torch.relu(" * times + "x" + ")" * times, {"x": (rows, 1024)})


# A part that a library of torch's computes, and a rectifier: see :func:`hybrid_kernel`.
HYBRIDS = (
    Operator("rectified matmul 2048", "torch.relu(x @ y)", {"x": (2048, 2048), "y": (2048, 2048)}),
    Operator("rectified softmax 16 MB", "torch.relu(torch.softmax(x, -1))", {"x": (4096, 1024)}),
)
SOFTMAX = OPERATORS[1]
KERNEL = r"""
// NUMBER
extern "C" __global__ void softmax(const float* x, float* y, int rows, int cols) {
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    __shared__ float partial[8];
    const float* a = x + (long long)row * cols;
    float* b = y + (long long)row * cols;
    float largest = -INFINITY, sum = 0;
    for (int j = threadIdx.x; j < cols; j += blockDim.x) largest = fmaxf(largest, a[j]);
    const int half = blockDim.x < 32 ? blockDim.x / 2 : 16;
    for (int o = half; o > 0; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, o));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int w = 0; w < (int)(blockDim.x + 31) / 32; w++) largest = fmaxf(largest, partial[w]);
    __syncthreads();
    for (int j = threadIdx.x; j < cols; j += blockDim.x) sum += expf(a[j] - largest);
    for (int o = half; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < (int)(blockDim.x + 31) / 32; w++) sum += partial[w];
    for (int j = threadIdx.x; j < cols; j += blockDim.x) b[j] = expf(a[j] - largest) / sum;
    __syncthreads();
  }
}
"""
_INLINE = f'''
import torch
from torch import nn

from kernelwright.inline import cuda

kernel = cuda(r"""{KERNEL}""", "softmax")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[min(x.shape[0], BLOCKS), THREADS](x, y, x.shape[0], x.shape[1])
        return y
'''
_CHAIN = r'''
import torch
from torch import nn

from kernelwright.inline import cuda

KERNEL = r"""
// NUMBER
extern "C" __global__ void rectify(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = fmaxf(x[i], 0.0f);
}
"""
kernel = cuda(KERNEL, "rectify")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        blocks = max(1, min(x.numel() // THREADS, 4096))
        kernel[blocks, THREADS](x, y, x.numel())
        for _ in range(TIMES - 1):
            kernel[blocks, THREADS](y, y, x.numel())
        return y
'''
_HYBRID = (
    _CHAIN.partition("class ModelNew")[0]
    + """class ModelNew(nn.Module):
    def forward(self, ARGUMENTS):
        z = EXPRESSION
        y = torch.empty_like(z)
        kernel[max(1, min(z.numel() // THREADS, 4096)), THREADS](z, y, z.numel())
        return y
"""
)
_TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax(x, y, cols, BLOCK: tl.constexpr):  # NUMBER
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    a = tl.load(x + row * cols + at, at < cols, -float("inf"))
    e = tl.exp(a - tl.max(a, 0))
    tl.store(y + row * cols + at, e / tl.sum(e, 0), at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax[(x.shape[0],)](x, y, x.shape[1], triton.next_power_of_2(x.shape[1]))
        return y
"""
_EXTENSION = f'''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""{KERNEL.replace('extern "C" ', "")}
torch::Tensor forward(torch::Tensor x) {{
  auto y = torch::empty_like(x);
  softmax<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(0), x.size(1));
  return y;
}}
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
'''


def cuda_kernel(number: str, *, threads: int = 256, wrong: bool = False) -> Candidate:
    """A softmax in CUDA, another file for each number."""
    source = _INLINE.replace("NUMBER", number).replace("THREADS", str(threads)).replace("BLOCKS", "65535")
    source = source.replace("/ sum;", "/ sum * 1.001f;") if wrong else source
    return Candidate(problem_id="proof/level1/softmax_16_mb", source=source, backend="cuda")


def chain_kernel(problem: Problem, number: str, *, times: int, threads: int = 256) -> Candidate:
    """A rectifier in CUDA, launched so often, another file for each number."""
    source = _CHAIN.replace("NUMBER", number).replace("TIMES", str(times)).replace("THREADS", str(threads))
    return Candidate(problem_id=problem.id, source=source, backend="cuda")


def hybrid_kernel(problem: Problem, operator: Operator, number: str, *, threads: int = 256) -> Candidate:
    """One of :data:`HYBRIDS`: torch's part by torch, and the rectifier in CUDA; another file for each number."""
    inner = operator.expression.removeprefix("torch.relu(").removesuffix(")")
    source = _HYBRID.replace("ARGUMENTS", ", ".join(operator.shapes)).replace("EXPRESSION", inner)
    source = source.replace("NUMBER", number).replace("THREADS", str(threads))
    return Candidate(problem_id=problem.id, source=source, backend="cuda")


def triton_kernel(number: str) -> Candidate:
    """A softmax in Triton, another file for each number."""
    return Candidate(
        problem_id="proof/level1/softmax_16_mb", source=_TRITON.replace("NUMBER", number), backend="triton"
    )


def extension_kernel(number: str) -> Candidate:
    """The softmax of :func:`extension`, judged by the referee."""
    return Candidate(problem_id="proof/level1/softmax_16_mb", source=extension(number), backend="cuda")


def extension(number: str) -> str:
    """The same softmax as torch's own ``load_inline`` builds it."""
    return _EXTENSION.replace("NUMBER", number)


# How KernelBench's documentation has a candidate judged: five trials by allclose, a hundred calls by events.
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
