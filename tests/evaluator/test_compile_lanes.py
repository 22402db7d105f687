"""Builds ahead of the device's lane: what they may use, that they need no lane, and that nothing depends on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
from referee_candidates import KERNEL, candidate
from referee_small_problems import SOFTMAX_PROBLEM, make_problem, unscreened

from kernelwright.evaluator import Check, Referee
from kernelwright.evaluator.builds.builder import BuildService
from kernelwright.evaluator.builds.lanes import BuildPass, CompileLanes, pick_lanes, siblings
from kernelwright.evaluator.device.side import DeviceSide
from kernelwright.evaluator.device.station import Station
from kernelwright.evaluator.host.device import Device
from kernelwright.evaluator.host.host import Program
from kernelwright.evaluator.verdict.build_ahead import BuildAhead
from kernelwright.records import Candidate, Status

pytestmark = pytest.mark.untimed
WAIT_S = 60.0


@pytest.fixture(scope="module")
def rehearsal(referee, make_cache, stand_in_device):
    settings = referee.settings.with_values(
        compile_lanes=1,
        measurement=referee.settings.measurement.with_values(looks=(3, 6), noise_bound=0.3),
        cache_dir=str(make_cache(without={"products"})),
    )
    with Referee(settings, device=stand_in_device) as made:
        yield made


@pytest.fixture(scope="module")
def session(rehearsal):
    with rehearsal.open(make_problem(SOFTMAX_PROBLEM, "softmax"), baselines=("eager",)) as opened:
        yield opened


def own(name: str, **options) -> Candidate:
    """A candidate whose kernel no other one has."""
    source = candidate(kernel=f"// {name}\n{KERNEL}", **options)
    return Candidate(problem_id="softmax", source=source, backend="cpp")


def products(referee) -> set[str]:
    return {path.parent.name for path in (referee.settings.cache_dir / "products").glob("*/product.so")}


@pytest.mark.parametrize(
    ("asked", "cpus", "threads", "lanes"),
    [
        ("auto", [0], 1, (0, [])),
        ("auto", [0, 1], 1, (0, [])),
        ("auto", [0, 1, 2], 1, (1, [1])),
        ("auto", [0, 1, 2, 3, 4, 5], 2, (3, [1, 2, 3])),
        ("auto", list(range(16)), 1, (4, list(range(1, 15)))),
        (2, [0, 1], 1, (2, [0, 1])),
        (1, list(range(8)), 2, (1, [1, 2, 3, 4, 5])),
        (0, list(range(8)), 1, (0, list(range(1, 7)))),
    ],
)
def test_lanes_take_no_core_that_something_is_timed_on(asked, cpus, threads, lanes):
    assert pick_lanes(asked, cpus, threads, lambda cpu: {cpu}) == lanes


def test_lanes_take_no_processor_that_shares_a_core_with_one_that_something_is_timed_on():
    assert pick_lanes("auto", list(range(8)), 1, lambda cpu: {cpu, (cpu + 4) % 8}) == (4, [1, 2, 5, 6])
    assert 0 in siblings(0)


def test_without_a_device_nothing_is_built_ahead(softmax, referee):
    before = products(referee)
    assert not softmax.builds_ahead("cpp")
    softmax.build_ahead(own("no device"))
    assert not softmax._ahead._passes
    assert products(referee) == before


def test_what_is_built_ahead_is_there_when_it_is_judged(rehearsal, session):
    assert session.builds_ahead("cpp")
    before = products(rehearsal)
    session.build_ahead(own("ahead"))
    assert session._ahead.take(own("ahead")) is not None
    made = products(rehearsal) - before
    assert len(made) == 1
    assert session.judge(own("ahead"), depth=Check()).verdict.status is Status.PASSED
    assert products(rehearsal) - before == made


def test_kernels_that_are_built_in_the_constructor_are_built_ahead_too(rehearsal, session):
    late = own("constructor").source.replace("lib = cpp(SOURCE, flags=())", "")
    late = late.replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n        self.lib = cpp(SOURCE)\n\n    def forward",
    )
    made = Candidate(problem_id="softmax", source=late.replace("        lib.", "        self.lib."), backend="cpp")
    before = products(rehearsal)
    session.build_ahead(made)
    assert session._ahead.take(made) is not None
    assert len(products(rehearsal) - before) == 1
    assert session.judge(made, depth=Check()).verdict.status is Status.PASSED


def test_a_build_that_failed_ahead_is_not_compiled_again_in_the_lane(rehearsal, session, monkeypatch):
    compiled = []
    compile_ = BuildService._compile
    monkeypatch.setattr(
        BuildService, "_compile", lambda *given, **named: compiled.append(1) or compile_(*given, **named)
    )
    broken = Candidate(problem_id="softmax", source=candidate(kernel="this is no C++"), backend="cpp")
    verdict = session.judge(broken).verdict
    assert verdict.status is Status.COMPILE_ERROR
    assert verdict.failed_stage == "build"
    assert len(compiled) == 1


def test_what_is_built_for_a_device_that_is_only_pretended_decides_nothing(session):
    top = "if torch.cuda.is_available():\n    cpp('#error for another device')"
    made = Candidate(problem_id="softmax", source=candidate(top=top), backend="cpp")
    assert session.judge(made, depth=Check()).verdict.status is Status.PASSED


def test_a_pass_that_the_machine_fails_costs_nothing_but_time(session, monkeypatch):
    def fail(*given):
        raise OSError(24, "too many open files")

    monkeypatch.setattr(BuildAhead, "_pass", fail)
    session.build_ahead(own("unlucky"))
    for _ in range(2):
        assert session.judge(own("unlucky"), depth=Check()).verdict.status is Status.PASSED


def test_a_pass_keeps_to_the_cores_of_the_lanes(rehearsal, session, monkeypatch):
    first = min(os.sched_getaffinity(0))
    monkeypatch.setattr(rehearsal.host.compile_lanes, "cpus", (first,))
    asked = []
    build = rehearsal.host.builds.build
    monkeypatch.setattr(rehearsal.host.builds, "build", lambda *given: asked.append(given[1]) or build(*given))
    note = "SOURCE += '// on ' + ','.join(map(str, sorted(os.sched_getaffinity(0))))"
    source = candidate().replace("lib = cpp", f"import os\n{note}\nlib = cpp")
    session._ahead.take(Candidate(problem_id="softmax", source=source, backend="cpp"))
    assert [text.rpartition("// on ")[2] for text in asked] == [str(first)]


def test_what_was_compiled_in_a_pass_is_handed_to_the_candidate_alone(session, monkeypatch):
    handed = []
    load = DeviceSide.load

    def watched(side, host, program):
        handed.append((program.role, program.compiled))
        load(side, host, program)

    monkeypatch.setattr(DeviceSide, "load", watched)
    monkeypatch.setattr(BuildAhead, "_pass", lambda ahead, made: BuildPass(b"compiled"))
    assert session.judge(own("handed"), depth=Check()).verdict.status is Status.PASSED
    assert {compiled for role, compiled in handed if role == "candidate"} == {b"compiled"}
    assert {compiled for role, compiled in handed if role != "candidate"} <= {b""}


GPU = Device("cuda:0", "a GPU that is not here", "sm_90a", 80 << 30)


def test_triton_is_compiled_ahead_for_the_device_that_is_here_and_on_the_cores_of_the_lanes(rehearsal, monkeypatch):
    class Fake:
        def call(self, entry, payload, *, limits, cpus, max_reply_bytes):
            return {"files": {payload["source"]: [payload["architectures"], list(cpus), limits.allow_exec]}}

    problem = make_problem(SOFTMAX_PROBLEM, "softmax")
    ahead = BuildAhead(rehearsal.host, problem, lambda made: None)
    assert ahead._compile("text") == b""  # nothing to compile for
    monkeypatch.setattr(rehearsal.host, "device", GPU)
    monkeypatch.setattr(rehearsal.host, "sandbox", Fake())
    assert json.loads(ahead._compile("text")) == {
        "files": {"text": [[90], list(rehearsal.host.compile_lanes.cpus), True]}
    }


def test_a_worker_on_a_device_gets_what_was_compiled_after_its_pages(rehearsal):
    class Fake:
        def request(self, operation, *, fds, **given):
            self.received = [os.pread(fd, 100, 0) for fd in fds[4:]]

    client = Fake()
    side = DeviceSide("candidate", client, Station.of(rehearsal.host, rehearsal.device))
    side.load(rehearsal.host, Program("", role="candidate", device=GPU, compiled=b"compiled"))
    assert client.received == [b"compiled"]
    side.load(rehearsal.host, Program("", device=GPU))
    assert client.received == []
    side.queue.close()


def test_a_candidate_is_built_while_the_device_is_anothers(rehearsal, session):
    before, built, verdicts = products(rehearsal), threading.Event(), []
    build = rehearsal.host.builds.build

    def watched(message, source):
        outcome = build(message, source)
        built.set()
        return outcome

    rehearsal.host.builds.build = watched
    judging = threading.Thread(
        target=lambda: verdicts.append(session.judge(own("in the meantime"), depth=Check()).verdict)
    )
    try:
        with rehearsal.host.lane():
            judging.start()
            assert built.wait(WAIT_S)
            assert len(products(rehearsal) - before) == 1
            assert not verdicts
        judging.join(WAIT_S)
    finally:
        del rehearsal.host.builds.build
    assert verdicts[0].status is Status.PASSED


@pytest.mark.parametrize(
    "top",
    ["raise RuntimeError('no device here')", "import os; os._exit(3)"],
    ids=["raises", "ends"],
)
def test_a_pass_that_goes_wrong_leaves_the_verdict_to_the_contestant(session, top):
    only_there = f"import kernelwright.inline.requests as b\nif b.only_builds():\n    {top}"
    made = Candidate(problem_id="softmax", source=candidate(top=only_there), backend="cpp")
    with unscreened(session):
        assert session.judge(made, depth=Check()).verdict.status is Status.PASSED


def test_a_candidate_that_is_wanted_now_goes_before_those_foreseen():
    order, begun, go = [], threading.Event(), threading.Event()

    class Lanes(CompileLanes):
        submitted = 0

        def submit(self, work):
            future = super().submit(work)
            self.submitted += 1
            if self.submitted == 4:  # all four wait for the lane that the first one has
                go.set()
            return future

    class Noting(BuildAhead):
        def _pass(self, made):
            order.append(made.source)
            begun.set()
            assert go.wait(WAIT_S)
            return BuildPass()

    lanes = Lanes(1, ())
    referee = type("R", (), {"compile_lanes": lanes})()
    ahead = Noting(referee, make_problem(SOFTMAX_PROBLEM, "softmax"), lambda made: None)
    named = [
        Candidate(problem_id="softmax", source=name, backend="cpp") for name in ("first", "second", "third", "now")
    ]
    for made in named[:3]:
        ahead.submit(made)
        ahead.submit(made)
    assert begun.wait(WAIT_S)
    assert ahead.take(named[3]) == BuildPass()
    assert order == ["first", "now"]
    assert ahead.take(named[1]) == ahead.take(named[1]) == BuildPass()
    ahead.close()
    assert order == ["first", "now", "second"]
    lanes.close()


def test_an_import_that_only_builds_loads_nothing():
    lines = """
from kernelwright import inline
from kernelwright.inline import requests
import torch.utils.cpp_extension as extension
asked = []
inline.set_product_provider(lambda request: asked.append(request) or "/nowhere")
inline.patch_load_inline(lambda request: asked.append(request) or "/nowhere")
requests.only_build()
kernel = inline.cuda("__global__ void twice(float* x) {}", "twice")
module = extension.load_inline("ext", "void go();", "void go() {}", functions=["go"])
go = module.go
for call in (lambda: kernel[1, 1](None), go):
    try:
        call()
    except inline.BuildError as error:
        print(error.message)
print([request.language for request in asked], hasattr(module, "__path__"))
"""
    said = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.endswith("this process builds kernels and runs none") for line in said[:2]] == [True, True]
    assert said[2] == "['cuda', 'torch_cuda_extension'] False"


TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def copied(x, y, n, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.autotune(configs=[triton.Config({"B": 64}), triton.Config({"B": 128})], key=["n"])
@triton.jit
def twice(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        copied[(1,)](x, y, x.numel(), triton.next_power_of_2(x.shape[1]) // 8)
        twice[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, y, x.numel())
        return y
"""
COMPILE_TWICE = """
import json, os, sys
from pathlib import Path
payload = json.load(open(sys.argv[1]))
if len(sys.argv) > 2:
    from kernelwright.evaluator.worker.triton.launches import lay_down
    lay_down(sys.argv[2])
from triton import knobs
hits = []
knobs.compilation.listener = lambda *, src, metadata, metadata_group, times, cache_hit: hits.append(cache_hit)
from kernelwright.evaluator.worker.triton.capture import compile_ahead
kept = compile_ahead(payload)
print(json.dumps({"hits": hits, "kept": kept}))
"""


def compile_in(folder, payload, *kept) -> dict:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", COMPILE_TWICE, str(payload), *map(str, kept)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=WAIT_S, check=True)
    return json.loads(done.stdout)


def test_what_triton_compiled_ahead_is_found_by_a_later_process_elsewhere(tmp_path):
    problem = make_problem(SOFTMAX_PROBLEM, "softmax")
    payload = tmp_path / "payload.json"
    asked = {"source": TRITON, "problem": problem.source, "mode": "eval", "architectures": [90]}
    payload.write_text(json.dumps({**asked, "variants": [{"COLS": 512}, {"COLS": 1000}]}))
    first = compile_in(tmp_path / "one", payload)
    assert first["hits"] == [False] * 4  # two of each kernel
    assert {name.rpartition(".")[2] for name in first["kept"]["files"]} >= {"cubin", "json"}
    kept = tmp_path / "kept.json"
    escape = {"../../out": "", "a/../../out": "", "/a/out": "", "./out": ""}
    kept.write_text(json.dumps({**first["kept"], "files": {**first["kept"]["files"], **escape}}))
    assert compile_in(tmp_path / "two", payload, kept)["hits"] == [True] * 4
    assert not list(tmp_path.rglob("out"))
