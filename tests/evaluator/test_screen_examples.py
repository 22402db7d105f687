"""Every rule of the screen can be tripped, and lets the honest code through that it carries as its example."""

from __future__ import annotations

import pytest
from test_screen_rules import HONEST, PTX, with_cpp, with_python

from kernelwright.evaluator.screen.rules import RULES
from kernelwright.evaluator.screen.screening import MAXIMUM_CHARACTERS, screen
from kernelwright.records.problems import OwnKernels

# Rule: code of the rule's own kind that trips it.
TRIPS = {
    "syntax": "class ModelNew:\n    note = '(' * 9)\n",
    "too-large": "class ModelNew:\n    pass\n" + "# a long table\n" * (MAXIMUM_CHARACTERS // 15),
    "no-model-new": "class Mine:\n    pass\n\n\ndef make():\n    ModelNew = Mine\n    return ModelNew\n",
    "no-own-kernel": "class ModelNew:\n    cpp = len\n    run = cpp('')\n",
    "library-reach": "found = open('reference.py').read()\n\n\nclass ModelNew:\n    pass\n",
    "libraries-alone": "class ModelNew:\n    pass\n",
    "harness-access": "from kernelwright.inline import parse_signatures",
    "frame-walk": "def f(error):\n    return error.__traceback__.tb_frame.f_back",
    "proc-access": "with open('/proc/self/mem', 'rb') as file:\n    memory = file.read()",
    "process-control": "import os\n\nos.fork()",
    "process-setting": "torch.set_num_threads(64)",
    "python-sleep": "import time\n\ntime.sleep(1)",
    "monkeypatch": "import time\n\ntime.perf_counter = len",
    "compiler-hook": "cpp(SOURCE, flags=['-include', 'a.h'])",
    "cpp-include": '#include "../omp.h"',
    "cpp-incbin": 'asm(".incbin \\"a\\"");',
    "cpp-process": "void f() { kill(1, 9); }",
    "cpp-syscall": 'void f() { asm volatile("syscall"); }',
    "cpp-interpreter": 'void f() { py::exec("x"); }',
    "torch-ops": "y = torch.matmul(torch.zeros(3), torch.zeros(3))",
    "reduced-precision": "half = torch.zeros(3, dtype=torch.float16)",
    "broad-except": "try:\n    import triton\nexcept Exception:\n    triton = None",
    "unused-kernel": "other = cpp(SOURCE)",
    "subclassed-reference": HONEST.replace("(nn.Module)", "(Model)").replace("lib =", "Model = nn.Module\nlib ="),
    "pointer-cache": "plans = {}\n\n\ndef f(x):\n    return plans.get(x.data_ptr())",
    "global-state": "plans = {}\n\n\ndef f(x):\n    plans[x] = x",
    "static-state": "static std::vector<float> cache;",
    "static-constructor": "__attribute__((constructor)) void f() {}",
    "threads": "void f() { std::thread t(g); }",
    "tensor-subclass": "class Mine(torch.Tensor):\n    pass",
    "graph-replay": "graph = torch.cuda.CUDAGraph()",
    "global-flag": "torch.backends.cuda.matmul.allow_tf32 = True",
    "environment": "import os\n\nthreads = os.environ",
    "file-access": "file = open('weights')",
    "network": "import socket",
    "subprocess": "import subprocess\n\nsubprocess.run('ls')",
    "dynamic-code": "exec('x = 1')",
    "introspection": "names = globals()",
    "native-library": "import ctypes\n\nlibm = ctypes.CDLL(None)",
    "memory-mapping": "void* f(int n) { return mmap(0, n, 3, 34, -1, 0); }",
    "timing-call": "import time\n\nstarted = time.monotonic()",
    "delay": "void f() { usleep(1); }",
    "exit-handler": "import signal\n\nsignal.signal(2, print)",
    "exit-call": "void f(bool stop) { if (stop) exit(0); }",
    "cache-policy": "prefetch.global.L2::evict_last [%rd1];",
    "fixed-address": "ld.volatile.global.f32 %f2, [4096];",
    "machine-code": 'void f() { asm(".byte 0x90"); }',
}


def found(kind: str, code: str) -> set[str]:
    """The rules that a candidate with this code in it trips."""
    whole = kind == "file" or "class ModelNew" in code
    wrap = {"python": with_python, "cpp": with_cpp, "ptx": lambda text: with_python(f"PTX = {in_ptx(text)!r}")}
    source = code if whole else wrap[kind](code)
    modes: tuple[OwnKernels, ...] = ("some", "any")  # files without kernels have rules of their own
    return {finding.rule for mode in modes for finding in screen(source, "cpp", own_kernels=mode).findings}


def in_ptx(statements: str) -> str:
    return PTX.replace("STATEMENT", statements)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_the_honest_example_does_not_trip_its_rule(rule):
    assert rule.honest.strip()
    assert rule.id not in found(rule.kind, rule.honest)
    if rule.effect == "refuses":  # an example that another rule refuses would show nothing
        refusing = {name for name in found(rule.kind, rule.honest) if RULES[name].effect == "refuses"}
        assert refusing <= ({"no-own-kernel"} if rule.kind == "file" else set())


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_every_rule_can_be_tripped(rule):
    assert rule.id in found(rule.kind, TRIPS[rule.id])
    assert rule.reason == rule.reason.strip()


def test_examples_and_rules_are_the_same_ones():
    assert set(TRIPS) == set(RULES)
    assert len({rule.honest for rule in RULES.values()}) == len(RULES)
    assert all(name == rule.id for name, rule in RULES.items())


def test_few_rules_refuse():
    """A rule that refuses must have no honest use: think twice before this number grows."""
    assert sum(rule.effect == "refuses" for rule in RULES.values()) <= 18
