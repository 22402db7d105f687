"""The verdict: what every stage found, as one record."""

from __future__ import annotations

from kernelwright.evaluator.verdict.progress import Progress
from kernelwright.records import Candidate, Problem, Status, Verdict
from kernelwright.records.verdicts import FailedStage, TimedVariant


class Ruling:
    """The outcome of a candidate's evaluation.

    Attributes:
        status: PASSED until a stage refuses the candidate. failed_stage, reason: where and why.
    """

    def __init__(self) -> None:
        self.status = Status.PASSED
        self.failed_stage: FailedStage | None = None
        self.reason = ""

    def refuse(self, status: Status, stage: FailedStage, reason: str) -> None:
        """Record a refusal."""
        self.status, self.failed_stage, self.reason = status, stage, reason

    def verdict(
        self,
        candidate: Candidate,
        problem: Problem,
        progress: Progress,
        *,
        control: bool,
        environment: str,
        variant: TimedVariant,
        layers: tuple[str, ...],
    ) -> Verdict:
        """The verdict. ``layers`` are the sandbox's own, for a candidate that got no worker."""
        evidence = progress.evidence
        share = None if evidence is None else evidence.share
        return Verdict(
            candidate=candidate.sha256,
            problem=problem.id,
            backend=candidate.backend,
            control=control,
            stage=progress.stage,
            failed_stage=self.failed_stage,
            status=self.status,
            reason=self.reason,
            findings=progress.findings,
            correctness=progress.correctness,
            timing=progress.timing,
            own_kernel_share=None if share is None else round(share.own, 4),
            own_kernel_label=None if evidence is None else evidence.label,
            eligible=progress.eligible,
            environment=environment,
            variant=variant,
            profile=progress.profile,
            sandbox=progress.layers or layers,
            seconds={name: round(seconds, 4) for name, seconds in progress.seconds.items()},
        )
