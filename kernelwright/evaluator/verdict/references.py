"""The check sets of a problem's reference, one for each class of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from kernelwright.datasets import no_variant
from kernelwright.evaluator.accuracy.trials import CheckSet, Variant
from kernelwright.evaluator.host.device import CPU
from kernelwright.evaluator.host.host import Host
from kernelwright.evaluator.truth.check_sets import OracleSession
from kernelwright.evaluator.truth.errors import reference_error
from kernelwright.evaluator.verdict.clocks import Clocks
from kernelwright.evaluator.verdict.interface import GeneratedTrials
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.records import Backend, InputGenerator, Problem
from kernelwright.records.verdicts import TimedVariant

T = TypeVar("T")


class References:
    """Asks oracles about one problem. Each oracle ends before a candidate's worker starts.

    Args:
        archive: generators whose draws are trials as well, wherever the reference is well defined on them.
    """

    def __init__(
        self,
        host: Host,
        clocks: Clocks,
        problem: Problem,
        archive: Sequence[InputGenerator],
        on_stage: Callable[[str], None],
    ) -> None:
        self._host = host
        self._clocks = clocks
        self._problem = problem
        self._archive = tuple(archive)
        self._on_stage = on_stage
        self._check_sets: dict[str, CheckSet] = {}

    def check_set(self, backend: Backend) -> CheckSet:
        """The check set of a backend's candidates, made on first use.

        Raises:
            InvalidReferenceError: the reference cannot be used.
            UsageError: the problem has no such variant for this class of devices.
        """
        device_class = self._host.class_for(backend)
        if device_class not in self._check_sets:
            if self._problem.variant >= len(self._problem.meta.variants_for(device_class)):
                raise no_variant(self._problem, device_class)
            self._on_stage("reference")
            found = self._asked(backend, lambda oracle: oracle.check_set(device_class, self._archive))
            self._check_sets[device_class] = found
        return self._check_sets[device_class]

    def admit(self, wanted: Sequence[InputGenerator], backend: Backend) -> GeneratedTrials:
        """Find where the reference is well defined on the draws of generators, and make trials of those draws.

        Raises:
            InvalidReferenceError: the reference cannot be used.
        """
        device_class = self._host.class_for(backend)
        checks, admissions = self._asked(backend, lambda oracle: oracle.admit(wanted, device_class))
        return GeneratedTrials(admissions, checks)

    def _asked(self, backend: Backend, ask: Callable[[OracleSession], T]) -> T:
        on_device = self._host.class_for(backend) == "gpu"
        clock, settings = self._clocks.of(backend) if on_device else self._clocks.on(CPU), self._host.settings
        client = clock.workers.oracle()
        try:
            return ask(OracleSession(client, self._problem, settings.measurement.check_trials, clock.asker(client)))
        except WorkerFailed as failed:
            raise reference_error(self._problem, failed, output=client.tail()) from None
        finally:
            client.close()

    def variant(self, backend: Backend) -> Variant | None:
        """The variant that a backend's candidates are constructed for; None if it is not known yet."""
        check_set = self._check_sets.get(self._host.class_for(backend))
        return None if check_set is None else check_set.variants[0]

    def timed_variant(self, backend: Backend) -> TimedVariant:
        """The variant that a backend's candidates are timed on, with its inputs if they are known yet."""
        constants = self._problem.meta.variants_for(self._host.class_for(backend))[0]
        variant = self.variant(backend)
        inputs = () if variant is None else variant.inputs_in_words()
        return TimedVariant(number=self._problem.variant, constants=constants, inputs=inputs)
