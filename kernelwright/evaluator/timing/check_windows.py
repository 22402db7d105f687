"""The check: trials with known answers, revealed in windows that look like those of timing.

A window holds as many calls as a timed one, over slots filled from the same bank; the trials lie at secret calls among
them, and only outputs of secret calls are read. So a candidate cannot know when it is checked, and cannot behave better
just then.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwright.evaluator.accuracy import budget, judging, randomness
from kernelwright.evaluator.accuracy.trials import Trial
from kernelwright.evaluator.host.seat import Seat
from kernelwright.evaluator.timing.slots import Slots
from kernelwright.evaluator.timing.turns import Plan, secret_calls
from kernelwright.records import Status

_REVEALS = 2  # times that each trial is revealed


class Finding(NamedTuple):
    """The worst of all comparisons, the number of trials, and whether an input was used below its precision."""

    judgement: judging.Judgement
    trials: int
    reduced_precision: bool = False


class Checker:
    """Checks one worker on one variant.

    Args:
        reduced_precision: lower precision inside is allowed, and reported instead of refused.
        before_pass: called with the number of each pass over the trials before its first window, the worker frozen.
        judge: compares outputs with truths.
    """

    def __init__(
        self,
        side: Seat,
        pool: Slots,
        plan: Plan,
        *,
        tolerance_scale: float,
        reduced_precision: bool,
        call_timeout_s: float,
        before_pass: Callable[[int], None] | None = None,
        judge: judging.Judge | None = None,
    ) -> None:
        self._judge = judge or judging.Judge()
        self._side = side
        self._pool = pool
        self._plan = plan
        self._tolerance_scale = tolerance_scale
        self._reduced_precision = reduced_precision
        self._call_timeout_s = call_timeout_s
        self._before_pass = before_pass or (lambda number: None)
        self._rng = np.random.default_rng(secrets.randbits(128))
        self.loads: dict[str, float] = {}  # by distribution, the largest error so far as a share of the budget
        self._outputs: dict[int, list[Any]] = {}
        self._drawn: dict[int, list[list[np.ndarray]]] = {}

    def check(self, trials: Sequence[Trial], *, passes: int = _REVEALS, number_from: int = 0) -> Finding:
        """Reveal every trial ``passes`` times and compare all of its outputs; ends at the first window that is wrong.

        Args:
            number_from: the number of the first of these passes, for ``before_pass``.

        Raises:
            WorkerFailed: the worker died, raised, hung, or claimed an output that is not there.
        """
        worst = judging.Judgement(None, "", 0.0, 0.0, True)
        self._outputs, self._drawn = {}, {}
        random = bool(trials and trials[0].draws)
        for number in range(passes):
            self._before_pass(number_from + number)
            repeats = -(-len(trials[0].draws) // passes) if random else 1
            for weights in self._rng.permutation(sorted({trial.weights for trial in trials})):
                pending = [k for k, trial in enumerate(trials) if trial.weights == weights] * repeats
                self._rng.shuffle(pending)
                while pending:
                    worst = worse(worst, self._window(trials, pending, int(weights)))
                    if worst.status is not None:
                        return Finding(worst, len(trials))
        if random:
            return Finding(self._judge_draws(trials, worst), len(trials))
        reason = self._probe(trials)
        if reason and not self._reduced_precision:
            worst = worst._replace(status=Status.INCORRECT_NUMERICAL, reason=reason)
        return Finding(worst, len(trials), bool(reason))

    def allclose(self, trials: Sequence[Trial]) -> bool:
        """Whether the outputs of all trials are ``allclose`` to the reference's; each is revealed once.

        Raises:
            WorkerFailed: as in :meth:`check`.
        """
        pending = list(range(len(trials)))
        while pending:
            if not self._window(trials, pending, 0).allclose:
                return False
        return True

    def _window(self, trials: Sequence[Trial], pending: list[int], weights: int) -> judging.Judgement:
        """One window with as many of the ``pending`` trials as it has reads; they are taken off the list."""
        variant = self._pool.variant
        slots, reads = secret_calls(self._rng, self._plan, self._pool.slots)
        chosen = [pending.pop() for _ in range(min(len(pending), len(reads)))]
        at = {int(call): k for call, k in zip(self._rng.permutation(reads), chosen, strict=False)}
        if len(variant.weights) > 1:
            self._side.take_weights(weights, call_timeout_s=self._call_timeout_s)
        self._pool.refill(slots)
        self._pool.place({int(slots[call]): trials[k] for call, k in at.items()})
        window = self._side.window(slots, reads, call_timeout_s=self._call_timeout_s)
        worst = judging.Judgement(None, "", 0.0, 0.0, True)
        for call, k in at.items():
            claims = window.outputs[call]
            if trials[k].draws:
                found, values = judging.decode_outputs(variant, claims)
                self._drawn.setdefault(k, []).append(values)
            else:
                found, values = self._judge.trial(trials[k], variant, claims, self._tolerance_scale)
                self._outputs[k] = values
                name = trials[k].distribution if weights == 0 else f"{trials[k].distribution}, other weights"
                self.loads[name] = max(found.load, self.loads.get(name, 0.0))
            if found.status is not None and trials[k].drawn_by:
                found = found._replace(reason=f"{found.reason} (inputs of the archive: {trials[k].drawn_by})")
            worst = worse(worst, found)
            if worst.status is not None:
                break
        return worst

    def _probe(self, trials: Sequence[Trial]) -> str:
        """Whether an input is used at lower precision than its dtype: the reason, or an empty string."""
        for k, trial in enumerate(trials):
            if trial.partner is None:
                continue
            reason = self._judge.probe(trial, trials[trial.partner], self._outputs[k], self._outputs[trial.partner])
            if reason:
                return reason
        return ""

    def _judge_draws(self, trials: Sequence[Trial], worst: judging.Judgement) -> judging.Judgement:
        for k, values in self._drawn.items():
            for j, spec in enumerate(self._pool.variant.outputs):
                theirs = [drawn[j] for drawn in trials[k].draws]
                ours = [drawn[j] for drawn in values]
                scale = judging.random_scale(trials[k].truths[j], theirs, spec.dtype)
                tolerance = budget.tolerance(trials[k].reductions, self._tolerance_scale)
                report = randomness.judge_random(ours, theirs, scale=scale, tolerance=tolerance)
                if not report.passed:
                    return worst._replace(status=Status.INCORRECT_NUMERICAL, reason=report.reason)
                worst = worst._replace(tolerance=tolerance)
        return worst


def worse(a: judging.Judgement, b: judging.Judgement) -> judging.Judgement:
    """The worse of two judgements. It is ``allclose`` only if both are."""
    worst = b if (b.status is not None and a.status is None) or b.load > a.load or a.tolerance == 0.0 else a
    return worst._replace(allclose=a.allclose and b.allclose)
