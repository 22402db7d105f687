"""Kernels as people write them for GPUs: candidates of their own in ``gpu_candidates``, and who judges them.

Each names its problem and the features that it shows in its docstring; ``kernelwright evaluate
gpu_candidates/problems/P.py gpu_candidates/triton/C.py`` judges one of them by hand.
"""

from __future__ import annotations

import ast
import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelwright.datasets import find_problem
from kernelwright.evaluator import ProblemSession, Referee, Search
from kernelwright.inline.cuda_toolchain import find_nvcc
from kernelwright.records import Candidate, Stage, Status, Verdict

ROOT = Path(__file__).with_name("gpu_candidates")
MOST_UNCHECKED = 0.1
ARCHITECTURE = "sm_90"


@dataclass(frozen=True)
class Kernel:
    """One file of ``gpu_candidates``: ``name`` is ``<backend>/<stem>``."""

    name: str
    backend: str
    problem: str
    features: frozenset[str]
    source: str

    @staticmethod
    def read(path: Path) -> Kernel:
        source = path.read_text()
        header = dict(re.findall(r"^(\w+): (.+)$", ast.get_docstring(ast.parse(source)) or "", re.M))
        features = frozenset(header.get("features", "").split(", ")) - {""}
        return Kernel(f"{path.parent.name}/{path.stem}", path.parent.name, header["problem"], features, source)


KERNELS = {kernel.name: kernel for kernel in map(Kernel.read, sorted(ROOT.glob("[ct]*/*.py")))}
PROFILED = list(KERNELS)[::3]  # compiling all of them as well would take longer than checking them


def of(backend: str) -> list[Kernel]:
    return [kernel for kernel in KERNELS.values() if kernel.backend == backend]


class KernelJudge:
    """Judges kernels, or changed texts of theirs, in sessions that are opened once for each problem."""

    def __init__(self, referee: Referee) -> None:
        self._referee = referee
        self._sessions: dict[str, ProblemSession] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> KernelJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def __call__(self, kernel: Kernel, source: str, *, profile: bool) -> Verdict:
        """``profile``: whether its kernels are compiled for a GPU as well."""
        if kernel.backend == "cuda" and find_nvcc() is None:
            pytest.skip("no nvcc here: install CUDA's toolkit to run the tests of CUDA candidates")
        if kernel.problem not in self._sessions:
            problem = find_problem(str(ROOT / f"problems/{kernel.problem}.py"))
            session = self._referee.open(problem, backend=kernel.backend, baselines=("eager",))
            self._sessions[kernel.problem] = self._open.enter_context(session)
        session = self._sessions[kernel.problem]
        made = Candidate(problem_id=session.problem.id, source=source, backend=kernel.backend)
        return session.judge(made, Search(static=profile)).verdict


class Verdicts(dict[str, Verdict]):
    """Verdicts on right kernels by name, each judged when it is asked for first; of PROFILED ones with a profile."""

    def __init__(self, judge: KernelJudge) -> None:
        super().__init__()
        self._judge = judge

    def __missing__(self, name: str) -> Verdict:
        self[name] = self._judge(KERNELS[name], KERNELS[name].source, profile=name in PROFILED)
        return self[name]


def assert_passes_or_is_not_checkable(verdict: Verdict) -> None:
    assert verdict.status in (Status.PASSED, Status.UNCHECKED), verdict.reason
    assert verdict.timing is None
    if verdict.status is Status.PASSED:
        assert verdict.stage is Stage.CHECKED, verdict.stage
    else:
        assert "not checkable" in verdict.reason or "emulator does not take it" in verdict.reason, verdict.reason


def assert_few_are_unchecked(verdicts: Verdicts, names: list[str], backend: str) -> None:
    """Of those that are judged at most as many as may be of all."""
    assert names
    unchecked = [name for name in names if verdicts[name].status is Status.UNCHECKED]
    assert len(unchecked) <= MOST_UNCHECKED * len(of(backend)), unchecked


def assert_has_a_static_profile(verdict: Verdict) -> None:
    if verdict.profile is None:
        assert verdict.status is Status.UNCHECKED, verdict.status  # not even the emulator could be built for it
        return
    kernels = verdict.profile.kernels
    assert {kernel.architecture for kernel in kernels} == {ARCHITECTURE}, kernels
    assert all(kernel.registers for kernel in kernels if not kernel.problem), kernels
    assert any(not kernel.problem for kernel in kernels), kernels
