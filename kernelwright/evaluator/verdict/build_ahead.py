"""Build passes: while a device is busy, its next candidates are built on cores that nothing is timed on.

The worker of a build pass is no contestant: it sees no device, no weights and no inputs. It imports and constructs the
candidate, which asks for builds on the way. The build service keeps each product under a hash of all that it was
made from. No verdict depends on a pass: the contestant asks again later, and finds its builds done or failed. Triton's
own compilations run the same way under fake tensors, and go to the workers of the same candidate only.

If no cores are left over, there are no compile lanes, since nothing may be built on cores that time candidates. Another
process of kernelwright chooses its own cores to time on, which may be these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future

from kernelwright import inline
from kernelwright.errors import KernelwrightError, SandboxError
from kernelwright.evaluator.accuracy.trials import Variant
from kernelwright.evaluator.builds.lanes import BuildPass
from kernelwright.evaluator.host.door import Door
from kernelwright.evaluator.host.host import RUNNER, Host, Program
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.records import Candidate, Problem
from kernelwright.sandbox import WorkerFailed as CallFailed

_PASS_TIMEOUT_S = 30.0  # for a candidate's own import and construction; builds are not counted
_MOST_KEPT = 8  # passes of one problem, for candidates that were not asked for yet or will be again
_MOST_COMPILED = 32 << 20  # bytes that Triton compiled for one candidate
_COMPILE = "kernelwright.evaluator.worker.triton.capture:compile_ahead"


class BuildAhead:
    """The build passes of one problem's candidates."""

    def __init__(self, host: Host, problem: Problem, variant: Callable[[Candidate], Variant | None]) -> None:
        """``variant``: the shapes that a candidate is constructed for, if they are known."""
        self._host = host
        self._problem = problem
        self._variant = variant
        self._passes: dict[str, Future[BuildPass]] = {}

    def submit(self, candidate: Candidate) -> None:
        """Begin a candidate's pass as soon as a lane is free, unless it has one."""
        self._begun(candidate)

    def take(self, candidate: Candidate) -> BuildPass | None:
        """The pass of a candidate that is wanted now, ahead of waiting passes; None if there is none or it failed."""
        if candidate.sha256 not in self._passes:
            self._withdraw()
        begun = self._begun(candidate)
        try:
            return None if begun is None else begun.result()
        except (CancelledError, KernelwrightError, OSError):  # a pass only saves time; a later one may succeed
            self._passes.pop(candidate.sha256, None)
            return None

    def _begun(self, candidate: Candidate) -> Future[BuildPass] | None:
        begun = self._passes.pop(candidate.sha256, None)
        if begun is None:
            begun = self._host.compile_lanes.submit(lambda: self._pass(candidate))
        if begun is not None:
            self._passes[candidate.sha256] = begun  # as the latest one
        for old in list(self._passes)[:-_MOST_KEPT]:
            self._passes.pop(old).cancel()
        return begun

    def close(self) -> None:
        """Cancel waiting passes and forget the others. A running pass ends by itself, or with the sandbox."""
        self._withdraw()
        self._passes.clear()

    def _withdraw(self) -> None:
        self._passes = {name: begun for name, begun in self._passes.items() if not begun.cancel()}

    def _pass(self, candidate: Candidate) -> BuildPass:
        """Import and construct a candidate in a worker that can only build.

        Raises:
            MachineError, OSError: the referee or the machine is at fault.
        """
        try:
            source = inline.apply_knobs(candidate.source, candidate.knobs)
        except (ValueError, SyntaxError):
            return BuildPass()
        host, variant = self._host, self._variant(candidate)
        door = Door(host.door_library)
        try:
            client = host.worker(RUNNER, name="candidate", builds=host.builds, cpus=host.compile_lanes.cpus)
            try:
                program = Program(source, role="candidate", mode=self._problem.meta.mode, checked_by="builder")
                host.load(client, door, program, timeout_s=_PASS_TIMEOUT_S)
                if variant is not None:
                    client.request(
                        "construct",
                        timeout_s=_PASS_TIMEOUT_S,
                        init=variant.init,
                        variant=variant.constants,
                        plan=variant.plan.to_json(),
                    )
            except WorkerFailed:
                pass  # it may need its device to be imported; the contestant's own import decides
            finally:
                client.close()
        finally:
            door.close()
        compiled = self._compile(source) if candidate.backend == "triton" else b""
        return BuildPass(compiled)

    def _compile(self, source: str) -> bytes:
        """What Triton compiles for this machine's device in a forward of each variant; empty if that fails."""
        device = self._host.device
        if not device.is_gpu:
            return b""
        payload: Mapping[str, object] = {
            "source": source,
            "problem": self._problem.source,
            "variants": [dict(variant) for variant in self._problem.meta.variants_for("gpu")],
            "mode": self._problem.meta.mode,
            "architectures": [int("".join(filter(str.isdigit, device.architecture)))],
        }
        limits = self._host.limits(wall_s=self._host.settings.capture_timeout_s, allow_exec=True)
        try:
            reply = self._host.sandbox.call(
                _COMPILE, payload, limits=limits, cpus=self._host.compile_lanes.cpus, max_reply_bytes=_MOST_COMPILED
            )
        except (SandboxError, CallFailed):
            return b""
        return json.dumps(reply).encode()
