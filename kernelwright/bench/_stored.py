"""A bench in the store: its samples with their verdicts, and the outcomes from which figures are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright.bench._outcomes import Outcome
from kernelwright.bench._summary import Asked
from kernelwright.campaign import plan_of
from kernelwright.errors import UsageError
from kernelwright.evaluator import sol_score
from kernelwright.records import Environment, Problem, Stage, Verdict

if TYPE_CHECKING:
    from kernelwright.store import RunRow, Sample, Store, StoredEvaluation

NO_CANDIDATE = "NO_CANDIDATE"  # status of a sample without a kernel that could be judged
_BUILT = (Stage.COMPILED, Stage.CHECKED, Stage.TIMED, Stage.CONFIRMED)
_SOL_BASELINE = "eager"


class JudgedSample(NamedTuple):
    """A sample and its last evaluation by the referee; None if it was not judged."""

    problem: Problem
    sample: Sample
    evaluation: StoredEvaluation | None

    @property
    def verdict(self) -> Verdict | None:
        """The referee's verdict; None if it was not judged."""
        return None if self.evaluation is None else self.evaluation.verdict

    @property
    def is_over(self) -> bool:
        """Whether the sample's outcome is known here: it was judged, or it has no kernel.

        The outcome is not known if the kernel is missing, and only another evaluation claims something about it.
        """
        return self.evaluation is not None or (self.sample.candidate is None and self.sample.claimed is None)

    @property
    def was_built(self) -> bool:
        """Whether it was built, right or wrong."""
        return self.verdict is not None and self.verdict.stage in _BUILT

    @property
    def right_by_kernelbench(self) -> bool:
        """Whether KernelBench's own rule would call it correct. If the rule was not tried, our verdict counts."""
        verdict = self.verdict
        if verdict is None:
            return False
        return verdict.passed if verdict.as_kernelbench is None else verdict.as_kernelbench


class StoredBench(NamedTuple):
    """A bench with its verdicts from the environments in which its languages were judged.

    Attributes:
        environments: where its samples were judged; empty if none was.
        samples: in the order of the problems, then by number.
        baselines: baselines that it was timed against, in the order of its settings.
    """

    run: RunRow
    problems: Sequence[Problem]
    samples: Sequence[JudgedSample]
    environments: Sequence[Environment]
    baselines: Sequence[str]

    @property
    def finished(self) -> list[Problem]:
        """The problems whose samples are all there and over. An imported folder counts as having all its samples."""
        plan = plan_of(self.run)
        counts = Counter(found.problem.id for found in self.samples)
        open_ones = {found.problem.id for found in self.samples if not found.is_over and found.sample.candidate}
        known = {found.problem.id for found in self.samples if found.is_over}
        wanted = plan.samples if plan.origin == "written" else 0
        return [
            p
            for p in self.problems
            if p.id not in open_ones and counts[p.id] >= wanted and (p.id in known or not counts[p.id])
        ]

    @property
    def asked(self) -> list[Asked]:
        """The finished problems, as figures need them."""
        return [Asked(name=p.id, level=p.level, category=p.meta.category) for p in self.finished]

    @property
    def unjudged(self) -> int:
        """The number of samples that are there and were not judged."""
        return sum(not found.is_over for found in self.samples)

    @property
    def too_small(self) -> int:
        """The number of samples that passed, but whose calls are too short to be timed."""
        return sum(found.verdict is not None and bool(found.verdict.too_small) for found in self.samples)

    @property
    def devices(self) -> str:
        """The names of the devices that it was judged on; empty if it was not judged."""
        return ", ".join(dict.fromkeys(environment.device for environment in self.environments))

    def outcomes(self) -> list[Outcome]:
        """The referee's outcome of each sample that is over."""
        return [_outcome(found) for found in self.samples if found.is_over]

    def outcomes_by_kernelbench(self) -> list[Outcome]:
        """The outcomes by KernelBench's own rule. A sample that the referee refused has no time, and so no speedup."""
        return [_outcome(found)._replace(correct=found.right_by_kernelbench) for found in self.samples if found.is_over]

    def untried(self) -> int:
        """The number of refused samples of finished problems on which KernelBench's rule was not tried."""
        finished = {problem.id for problem in self.finished}
        return sum(
            found.verdict is not None and not found.verdict.passed and found.verdict.as_kernelbench is None
            for found in self.samples
            if found.problem.id in finished
        )

    def caught(self) -> Mapping[str, int]:
        """The refused samples of finished problems that KernelBench's rule would let pass: their number by status."""
        finished = {problem.id for problem in self.finished}
        statuses = [
            found.verdict.status.value
            for found in self.samples
            if found.verdict is not None and not found.verdict.passed and found.right_by_kernelbench
            if found.problem.id in finished
        ]
        return dict(Counter(statuses).most_common())


def load_bench(store: Store, run: RunRow, environment: str | None = None) -> StoredBench:
    """A bench with its verdicts from the named environment, else from the one in which each language was judged last.

    Of several verdicts on a sample, the latest counts. Quarantined verdicts do not count.

    Args:
        environment: an environment's id, or the beginning of it.

    Raises:
        UsageError: nothing of the bench was judged there.
    """
    problems = store.run_problems(run.id)
    evaluations = [found for found in store.evaluations(run_id=run.id) if found.quarantined is None]
    last = {found.candidate.backend: found.environment.id for found in evaluations}
    if environment is None:
        chosen = set(last.values())
    else:
        known_ids = {found.environment.id for found in evaluations}
        chosen = {name for name in known_ids if name.startswith(environment)} if environment else set()
        if not chosen:
            told = ", ".join(sorted(known_ids)) or "it was judged nowhere yet"
            raise UsageError(f"nothing of this bench was judged in {environment!r}", hint=f"environments: {told}")
    by_candidate: dict[tuple[str, str], StoredEvaluation] = {}
    for found in evaluations:
        if found.environment.id in chosen:
            by_candidate[found.verdict.problem, found.verdict.candidate] = found
    known = {problem.id: problem for problem in problems}
    samples = [
        JudgedSample(
            known[sample.problem],
            sample,
            None if sample.candidate is None else by_candidate.get((sample.problem, sample.candidate.sha256)),
        )
        for sample in store.run_samples(run.id)
    ]
    timed = {name for found in by_candidate.values() if found.verdict.timing for name in found.verdict.timing.speedup}
    return StoredBench(
        run=run,
        problems=problems,
        samples=samples,
        environments=list({found.environment.id: found.environment for found in by_candidate.values()}.values()),
        baselines=[name for name in run.config.baselines if name in timed] or list(run.config.baselines),
    )


def _outcome(found: JudgedSample) -> Outcome:
    problem, number, verdict = found.problem, found.sample.number, found.verdict
    about: dict[str, Any] = {
        "problem": problem.id,
        "level": problem.level,
        "category": problem.meta.category,
        "sample": number,
    }
    if verdict is None:
        return Outcome(**about, compiled=False, correct=False, speedups={}, status=NO_CANDIDATE)
    timing = None if verdict.too_small else verdict.timing
    speedups = {} if timing is None else {name: speedup.median for name, speedup in timing.speedup.items()}
    return Outcome(
        **about,
        compiled=found.was_built,
        correct=verdict.earns,
        speedups=speedups,
        own_share=verdict.own_kernel_share,
        sol=_sol(verdict),
        status=verdict.status.value,
    )


def _sol(verdict: Verdict) -> float | None:
    """The SOL score, from the profile's distance to the roofline; None if a time or the distance is not known."""
    timing, profile = None if verdict.too_small else verdict.timing, verdict.profile
    distance = 0.0 if profile is None else profile.metrics.get("distance_to_roofline", 0.0)
    baseline = None if timing is None else timing.speedup.get(_SOL_BASELINE)
    if timing is None or baseline is None or distance <= 0:
        return None
    time_ms = timing.latency_ms.median
    light_ms, baseline_ms = time_ms / distance, time_ms * baseline.median
    return sol_score(time_ms, baseline_ms, light_ms) if baseline_ms > light_ms else None
