"""Static profiles: the GPU resources of kernels that are not timed here, as their compilers report them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kernelwright import inline
from kernelwright.evaluator.host.host import Host
from kernelwright.evaluator.host.seat import Seat
from kernelwright.evaluator.profile.static import objection, profile_cuda, profile_triton, read_machine_code
from kernelwright.evaluator.verdict.progress import Progress
from kernelwright.records import Candidate, Problem, Profile


class StaticProfiler:
    """Compiles candidates of one problem for all known architectures.

    Args:
        beside: a thread that begins to compile while a candidate is checked.
    """

    def __init__(
        self, host: Host, problem: Problem, on_stage: Callable[[str], None], beside: ThreadPoolExecutor
    ) -> None:
        self._host = host
        self._problem = problem
        self._on_stage = on_stage
        self._beside = beside

    def begin(self, candidate: Candidate, progress: Progress) -> None:
        """Begin to profile a Triton candidate. That needs nothing from its worker."""
        if candidate.backend == "triton":
            progress.beside = self._beside.submit(self.profile, candidate, progress)

    def begin_built(self, candidate: Candidate, side: Seat, progress: Progress) -> None:
        """Begin to compile the kernels that a CUDA candidate's worker had built, for all architectures."""
        if candidate.backend == "cuda":
            progress.beside = self._beside.submit(read_machine_code, self._host.builds, side.client.built[:])

    def note(self, candidate: Candidate, progress: Progress) -> str:
        """Put the profile into ``progress``. Return why no kernel can be launched, or an empty string."""
        with progress.timed("static"):
            self._on_stage("static")
            begun = None if progress.beside is None else progress.beside.result()
            progress.profile = begun or self.profile(candidate, progress)
        return objection(progress.profile) if progress.profile else ""

    def profile(self, candidate: Candidate, progress: Progress) -> Profile | None:
        """The GPU resources that a candidate's kernels use; None if nothing was built."""
        if candidate.backend == "cuda":
            return profile_cuda(self._host.builds, progress.built, progress.launches)
        limits = self._host.limits(wall_s=self._host.settings.capture_timeout_s, allow_exec=True)
        source = inline.apply_knobs(candidate.source, candidate.knobs)
        return profile_triton(self._host.sandbox, self._host.builds, source, self._problem, limits=limits)
