"""How much of the work own kernels do, by ghost replay, share of time, and operators of torch.

None of this is proof: a candidate can notice each of these looks and behave differently. A candidate is refused if the
evidence says that its own kernels are there for show. It is not eligible if they do little or nothing of what the
reference does, and do not pretend to more (see :meth:`Evidence.shortfall`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from kernelwright.evaluator.own.shares import FOREIGN_AT_MOST, OWN_AT_LEAST, Share, label

_FEWEST_SAMPLES = 24  # with fewer, a share is shown and refuses nothing
_MOSTLY = 0.6
_KEPT = 0.25  # own kernels that run less than this share of their first time leave the work to other code
_MUCH = 0.25  # of the time: if own kernels take less at first, a difference says nothing
_LOOKED_UP = 8  # times shorter than the shortest on new inputs: warm caches cannot explain that


class Evidence(NamedTuple):
    """The evidence on one candidate. Shares are None if sampling is impossible here or no sample was taken.

    share: over inputs that the candidate had not seen before; again: over the same inputs once more.
    lengths_ns: of calls, the shortest on new inputs and the median when the same come again; None if none were made.
    ghost: ``needed`` (without its own kernels the candidate answers wrong or not at all), ``idle`` (it answers right
    without them), ``unknown`` (they cannot be stubbed).
    operators: the operators that torch dispatched in a call, with counts; torch_flops: their arithmetic, and
    reference_flops that of the reference; torch_steps: how many of them compute something, and reference_steps the
    same of the reference. claimed: whether the candidate has kernels of its own at all.
    """

    share: Share | None
    again: Share | None
    launches: tuple[int, int] | None
    ghost: Literal["needed", "idle", "unknown"]
    ghost_reason: str
    torch_flops: int
    reference_flops: int
    operators: Mapping[str, int]
    calls: list[dict[str, Any]]
    lengths_ns: tuple[float, float] | None = None
    torch_steps: int = 0
    reference_steps: int = 0
    claimed: bool = True

    @property
    def label(self) -> Literal["kernel", "hybrid", "library"] | None:
        """``kernel``, ``hybrid`` or ``library``; None if it is unknown.

        Without a share, a candidate is a hybrid if torch does the arithmetic and own kernels do another step.
        """
        if not self.claimed:
            return "library"
        if self.share is not None:
            return label(self.share)
        if not self.torch_does_the_arithmetic:
            return None
        return "hybrid" if self._own_step else "library"

    @property
    def torch_does_the_arithmetic(self) -> bool:
        """Whether torch's own operators do as much arithmetic as the reference."""
        return self.torch_flops >= self.reference_flops > 0

    @property
    def _own_step(self) -> bool:
        """Whether the answer needs own kernels, and they take over steps that torch takes in the reference."""
        return self.ghost == "needed" and self.torch_steps < self.reference_steps

    @property
    def _for_show(self) -> bool:
        """Whether torch does as much as in the reference, in as many steps, so own kernels replace nothing of it.

        A kernel that only copies torch's result, or computes one row of it once more, replaces no step.
        """
        return self.torch_flops >= self.reference_flops and self.torch_steps >= self.reference_steps

    def objection(self) -> str:
        """Why the candidate is not what it seems, or an empty string."""
        return (self._pretence() if self.claimed else "") or self._kept()

    def _pretence(self) -> str:
        """Why own kernels seem to be there for show, or an empty string."""
        if self.ghost == "idle":
            return "the answer does not need the candidate's own kernels: it is right without them"
        if self.launches is not None and 0 in self.launches:
            when = "when the same inputs come again" if self.launches[0] else "in a call"
            return f"its answers are not its kernels': it launches none {when}"
        if self.share is None and self._for_show and self.torch_does_the_arithmetic:
            return "torch's own operators do all of the reference's arithmetic"
        if self.share is not None and self._for_show and self._hardly_runs_own(self.share):
            return f"{self._takes(self.share)}, while torch takes all the steps that the reference has"
        return ""

    def shortfall(self) -> str:
        """Why the candidate is not eligible, or an empty string: libraries do nearly all of the work."""
        if not self.claimed:
            return "it has no kernels of its own: libraries do all of the work"
        if self.share is not None:
            return self._takes(self.share) if self._hardly_runs_own(self.share) else ""
        if self.torch_does_the_arithmetic and not self._own_step:
            return "torch's own operators do all of the reference's arithmetic"
        return ""

    def shortfall_of_strict(self, heavy_ops: Collection[str]) -> str:
        """Why the candidate is not eligible if own kernels must do nearly all of the work, or an empty string."""
        heavy = sorted(set(self.operators) & set(heavy_ops))
        if heavy:
            return f"torch does the problem's heavy work ({', '.join(heavy)})"
        share = self.share
        if share is None and self.torch_does_the_arithmetic:
            return "torch does all of the reference's arithmetic"
        if share is None or (self.torch_steps == 0 and self._is_tiny(share)):
            return ""
        foreign = share.library + share.other
        least = _bounds(share._replace(own=foreign / (share.own + foreign or 1.0)))[0]
        if share.samples >= _FEWEST_SAMPLES and least > FOREIGN_AT_MOST:
            return f"libraries take {foreign:.0%} of the time beside {share.own:.0%} in own kernels"
        return ""

    @staticmethod
    def _takes(share: Share) -> str:
        return f"own kernels take {share.own:.1%} of the time, less than {OWN_AT_LEAST:.0%}"

    def _kept(self) -> str:
        """Why the candidate seems to keep answers, or an empty string."""
        if self.share is not None and self.again is not None and _keeps_answers(self.share, self.again):
            first, later = f"{self.share.own:.0%}", f"{self.again.own:.0%}"
            return (
                f"it keeps answers: own kernels take {first} of the time, and {later} when the same inputs come again"
            )
        if self.lengths_ns is not None and are_looked_up(*self.lengths_ns):
            first, later = (f"{length / 1000:.3g} us" for length in self.lengths_ns)
            return f"it keeps answers: calls take {first} or more, and {later} when the same inputs come again"
        return ""

    def objection_while_timed(self, later: Share) -> str:
        """Why its share while it is timed shows that the candidate leaves its work to other code; or empty."""
        first = self.share
        if first is None or min(first.samples, later.samples) < _FEWEST_SAMPLES or _bounds(first)[0] < _MUCH:
            return ""
        if _bounds(later)[1] < _KEPT * _bounds(first)[0]:
            return f"own kernels take {first.own:.0%} of the time when checked, and {later.own:.0%} once it is timed"
        return ""

    def shortfall_while_timed(self, later: Share) -> str:
        """Why its share while it is timed makes a candidate not eligible; empty if :meth:`shortfall` said so before."""
        if self.shortfall() or not self._hardly_runs_own(later):
            return ""
        return f"{self._takes(later)}, once it is timed"

    def is_settled_while_timed(self, later: Share) -> bool:
        """Whether there are enough samples for :meth:`objection_while_timed` to decide."""
        if self.share is None or self.objection_while_timed(later):
            return True
        surely_runs = _bounds(later)[0] > _KEPT * self.share.own or _bounds(self.share)[0] < _MUCH
        return later.samples >= _FEWEST_SAMPLES and surely_runs and (self._is_tiny(later) or is_decided(later))

    def _hardly_runs_own(self, share: Share) -> bool:
        """Whether own kernels take too little of the time.

        Around a kernel of a microsecond, Python and the allocation of its output take nearly all of the time. So a
        candidate that does no arithmetic in torch and needs its kernels passes unless libraries take most of the time.
        """
        if share.samples < _FEWEST_SAMPLES or _bounds(share)[1] >= OWN_AT_LEAST:
            return False
        return not self._is_tiny(share)

    def _is_tiny(self, share: Share) -> bool:
        return self.ghost == "needed" and self.torch_flops == 0 and share.library + share.other < _MOSTLY

    def text(self) -> str:
        """The evidence in words, for a finding."""
        share = self.share
        parts = {"needed": "wrong without its own kernels", "idle": "right without its own kernels"}
        found = [parts.get(self.ghost, f"own kernels cannot be stubbed ({self.ghost_reason})")]
        if not self.claimed:
            found = ["no kernels of its own"]
        if share is None:
            return "; ".join([*found, *([f"label {self.label}"] if self.label else [])])
        found.append(f"label {self.label}")
        found.append(f"own {share.own:.0%}, library {share.library:.0%}, Python {share.python:.0%}")
        found.append(f"other {share.other:.0%} of {share.samples} samples")
        if self.again is not None:
            found.append(f"own {self.again.own:.0%} of {self.again.samples} samples when the same inputs came again")
        return "; ".join(found)


def _keeps_answers(first: Share, again: Share) -> bool:
    """Whether own kernels surely run less for inputs that were seen before."""
    if min(first.samples, again.samples) < _FEWEST_SAMPLES:
        return False
    least = _bounds(first)[0]
    return least > _MUCH and _bounds(again)[1] < _KEPT * least


def _bounds(share: Share) -> tuple[float, float]:
    """Wilson's 95% interval of the own share (E. B. Wilson, J. Amer. Statist. Assoc. 22, 1927)."""
    n, p, z = share.samples, share.own, 1.96
    centre = p + z * z / (2 * n)
    reach = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - reach) / (1 + z * z / n), (centre + reach) / (1 + z * z / n)


def is_decided(share: Share) -> bool:
    """Whether there are enough samples to compare the own share with :data:`OWN_AT_LEAST`."""
    low, high = _bounds(share)
    return share.samples >= _FEWEST_SAMPLES and not low <= OWN_AT_LEAST <= high


def is_compared(first: Share, again: Share) -> bool:
    """Whether there are enough samples to say whether answers are kept."""
    if min(first.samples, again.samples) < _FEWEST_SAMPLES:
        return first.samples < _FEWEST_SAMPLES
    surely_not = _bounds(again)[0] > _KEPT * first.own  # five in 24 samples are no surer than one
    return first.own < _MUCH or surely_not or _keeps_answers(first, again)


def are_looked_up(new_ns: float, again_ns: float) -> bool:
    """Whether calls are so much shorter when inputs come again that the work cannot be done anew."""
    return again_ns * _LOOKED_UP < new_ns


class Shares(NamedTuple):
    """Shares over new inputs, and over the same ones again; ``lengths_ns`` as in :class:`Evidence`."""

    first: Share | None
    again: Share | None
    lengths_ns: tuple[float, float] | None = None

    def keep_answers(self) -> bool:
        """Whether the candidate seems to keep answers."""
        if self.lengths_ns is not None and are_looked_up(*self.lengths_ns):
            return True
        return self.first is not None and self.again is not None and _keeps_answers(self.first, self.again)
