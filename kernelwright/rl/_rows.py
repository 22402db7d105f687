"""Rows of the kinds of data about single kernels: triples, pairs, prompts."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kernelwright.inline import apply_knobs
from kernelwright.prompts import Exemplar
from kernelwright.records import Backend, Candidate, Environment, Interval, sha256_text
from kernelwright.rl._asking import Message, answer, new_kernel_prompt, stored_prompt
from kernelwright.rl._evidence import Evidence, Judged
from kernelwright.rl._scrub import reveals, scrub

if TYPE_CHECKING:
    from kernelwright.store import Store

__all__ = ["FASTER", "RIGHT_OVER_REFUSED", "Dropped", "RowMaker", "interval_columns", "problem_columns"]

RIGHT_OVER_REFUSED: Final = "right over refused"
FASTER: Final = "faster"
Row = dict[str, Any]
Dropped = Counter[str]  # how often each rule left something out


class _Pair(NamedTuple):
    chosen: Judged
    rejected: Judged
    why: str


class RowMaker:
    """Makes rows out of a problem's evidence.

    Args:
        include_checked: count kernels as good that were found right in an environment that cannot time.
        most_pairs: most pairs of each problem, language and environment.
        shown: whether an exemplar may be shown in a prompt.
        sent_prompts: whether a prompt that was sent may be published, by its text.
        dropped: counts what is left out.
    """

    def __init__(
        self,
        store: Store,
        *,
        include_checked: bool,
        most_pairs: int,
        shown: Callable[[Exemplar], bool],
        sent_prompts: Callable[[str], bool],
        dropped: Dropped,
    ) -> None:
        self._store = store
        self._include_checked = include_checked
        self._most_pairs = most_pairs
        self._shown = shown
        self._sent_prompts = sent_prompts
        self._dropped = dropped

    def good(self, evidence: Evidence) -> list[Judged]:
        """The kernels that may serve as an answer."""
        return [one for one in evidence.judged if one.confirmed or (self._include_checked and one.checked)]

    def can_be_given(self, one: Judged) -> bool:
        """Whether a kernel's text may be published."""
        return not _file_of(one.entry.candidate)[1]

    def triples(self, evidence: Evidence, kernels: Sequence[Judged]) -> Iterator[Row]:
        """A row of kind ``sft`` for each kernel."""
        for one in kernels:
            kernel = self._kernel(one)
            if kernel is None:
                continue
            candidate, verdict = one.entry.candidate, one.entry.verdict
            sent = self._sent(candidate)
            reasoning = scrub(candidate.note.strip())
            yield {
                "prompt": sent or self._prompt(evidence, one.backend, one.environment),
                "completion": answer(reasoning, kernel),
                **problem_columns(evidence, one.backend),
                "reasoning": reasoning,
                "kernel": kernel,
                "kernel_sha256": sha256_text(kernel),
                "candidate": one.sha256,
                "knobs": _json(candidate.knobs),
                **interval_columns("speedup_eager", one.speedup("eager")),
                **interval_columns("speedup_compile", one.speedup("compile")),
                **interval_columns("latency_ms", None if verdict.timing is None else verdict.timing.latency_ms),
                "own_kernel_share": verdict.own_kernel_share,
                "status": verdict.status.value,
                "stage": None if verdict.stage is None else verdict.stage.value,
                "checked_only": one.checked,
                **_place(one.environment),
                "author": scrub(candidate.author),
                "operator": candidate.operator,
                "prompt_from": "call" if sent else "rendered",
                "evaluation": one.entry.id,
            }

    def pairs(self, evidence: Evidence) -> Iterator[Row]:
        """Rows of kind ``preferences``. The kernels of a pair have the same language and environment."""
        groups: dict[tuple[Backend, str], list[Judged]] = {}
        for one in evidence.judged:
            groups.setdefault((one.backend, one.environment.id), []).append(one)
        for (backend, _), group in sorted(groups.items()):
            prompt: list[Message] = []
            for pair in self._chosen_pairs(group):
                better, worse = self._kernel(pair.chosen), self._kernel(pair.rejected)
                if better is None or worse is None:
                    continue
                prompt = prompt or self._prompt(evidence, backend, pair.chosen.environment)
                yield _pair_row(evidence, pair, prompt, better, worse)

    def prompts(
        self, evidence: Evidence, backends: Sequence[Backend], split: str, numbers: Iterator[int]
    ) -> Iterator[Row]:
        """A row of kind ``prompts`` for each language, with the environment of the latest evaluation in it."""
        for backend in backends:
            latest = [entry for entry in evidence.entries if entry.candidate.backend == backend]
            environment = latest[-1].environment if latest else None
            problem = evidence.problem.id
            yield {
                "prompt": self._prompt(evidence, backend, environment),
                **problem_columns(evidence, backend),
                **(_place(environment) if environment else {"environment": None, "device": None}),
                **_baselines(evidence, backend, environment),
                "data_source": evidence.problem.suite,
                "ability": "kernel",
                "reward_model": {"style": "rule", "ground_truth": problem},
                "extra_info": {"index": next(numbers), "split": split, "problem": problem, "backend": backend},
            }

    def _chosen_pairs(self, group: Sequence[Judged]) -> list[_Pair]:
        """At most ``most_pairs`` pairs. The two sorts alternate, each in an order that hashes decide."""
        good = [one for one in group if one.confirmed or (self._include_checked and one.checked)]
        refused = [one for one in group if one.refused]
        times = {one.sha256: found for one in group if (found := _time_of(one)) is not None}
        slower = _Smallest(self._most_pairs)
        wrong = _Smallest(self._most_pairs)
        for one in good:
            for other in refused:
                wrong.add(_Pair(one, other, RIGHT_OVER_REFUSED))
            for other in group if one.sha256 in times else ():
                if other.sha256 in times and times[one.sha256].is_ahead_of(times[other.sha256]):
                    slower.add(_Pair(one, other, FASTER))
        both = [pair for pair in chain.from_iterable(zip_longest(slower.pairs(), wrong.pairs())) if pair is not None]
        chosen = both[: self._most_pairs]
        left_out = slower.seen + wrong.seen - len(chosen)
        if left_out:
            self._dropped["preferences: more pairs of a problem than asked for"] += left_out
        return chosen

    def _kernel(self, one: Judged) -> str | None:
        """The file as it was judged; None, which is counted, if it cannot be published."""
        source, fault = _file_of(one.entry.candidate)
        if fault:
            self._dropped[fault] += 1
        return None if fault else source

    def _sent(self, candidate: Candidate) -> list[Message] | None:
        """The prompt that the author was sent, if it asked for a new kernel."""
        if candidate.operator != "new":
            return None
        return stored_prompt(self._store, candidate.prompt_sha256, self._sent_prompts)

    def _prompt(self, evidence: Evidence, backend: Backend, environment: Environment | None) -> list[Message]:
        return new_kernel_prompt(evidence.problem, backend, environment, shown=self._shown)


def problem_columns(evidence: Evidence, backend: Backend) -> Row:
    """The columns about the problem, which every kind has."""
    problem = evidence.problem
    return {
        "problem": problem.id,
        "suite": problem.suite,
        "level": problem.level,
        "category": evidence.category,
        "backend": backend,
        "licence": evidence.licence,
        "reference": problem.source,
        "reference_sha256": problem.sha256,
    }


def interval_columns(name: str, found: Interval | None) -> Row:
    """A median with its interval as three columns."""
    return {
        name: found and found.median,
        f"{name}_low": found and found.low,
        f"{name}_high": found and found.high,
    }


def _file_of(candidate: Candidate) -> tuple[str, str]:
    """A kernel's text with its knobs set, as it was judged, and why it may not be published; empty if it may."""
    try:
        source = apply_knobs(candidate.source, candidate.knobs) if candidate.knobs else candidate.source
    except (ValueError, SyntaxError):
        return candidate.source, "kernel: its knobs cannot be set in its text"
    return source, "kernel: its source names a place on a machine, or a key" if reveals(source) else ""


def _pair_row(evidence: Evidence, pair: _Pair, prompt: list[Message], better: str, worse: str) -> Row:
    chosen, rejected = pair.chosen.entry, pair.rejected.entry
    return {
        "prompt": prompt,
        "chosen": answer(scrub(chosen.candidate.note.strip()), better),
        "rejected": answer(scrub(rejected.candidate.note.strip()), worse),
        "why": pair.why,
        **problem_columns(evidence, pair.chosen.backend),
        **_place(chosen.environment),
        "checked_only": pair.chosen.checked,
        "chosen_candidate": pair.chosen.sha256,
        "rejected_candidate": pair.rejected.sha256,
        "chosen_status": chosen.verdict.status.value,
        "rejected_status": rejected.verdict.status.value,
        "rejected_reason": scrub(rejected.verdict.reason),
        **interval_columns("chosen_speedup", pair.chosen.speedup()),
        **interval_columns("rejected_speedup", pair.rejected.speedup()),
    }


class _Time(NamedTuple):
    """A measured speedup for comparisons: the ends of its interval, and the noise bound of its measurement."""

    low: float
    high: float
    noise: float

    def is_ahead_of(self, other: _Time) -> bool:
        """Whether the 95% intervals are apart by more than the noise bound of either measurement."""
        return self.low > other.high * (1.0 + max(self.noise, other.noise))


def _time_of(one: Judged) -> _Time | None:
    found, timing = one.speedup(), one.entry.verdict.timing
    return None if found is None or timing is None else _Time(found.low, found.high, timing.noise_bound)


class _Smallest:
    """Keeps the ``most`` pairs with the smallest hashes, and counts all pairs that it is given."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[int, int, _Pair]] = []  # negative hash, tie breaker, pair
        self.seen = 0

    def add(self, pair: _Pair) -> None:
        """Add a pair."""
        self.seen += 1
        entry = (-_pair_hash(pair), self.seen, pair)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        elif entry > self._heap[0]:
            heapq.heapreplace(self._heap, entry)

    def pairs(self) -> list[_Pair]:
        """The kept pairs, the smallest hash first."""
        return [pair for _, _, pair in sorted(self._heap, reverse=True)]


def _pair_hash(pair: _Pair) -> int:
    return int(pair.chosen.sha256[:15], 16) ^ int(pair.rejected.sha256[15:30], 16)


def _place(environment: Environment) -> Row:
    return {"environment": environment.id, "device": environment.device}


def _baselines(evidence: Evidence, backend: Backend, environment: Environment | None) -> Row:
    """Baseline times from the latest confirmation in this environment, else from the latest search timing."""
    timed = [
        timing
        for entry in evidence.entries
        if environment is not None
        and entry.environment.id == environment.id
        and entry.candidate.backend == backend
        and entry.quarantined is None
        and (timing := entry.verdict.timing) is not None
    ]
    confirmed = [timing for timing in timed if timing.confirmed]
    best = next(reversed(confirmed or timed), None)
    known = {} if best is None else {name: s.median * best.latency_ms.median for name, s in best.speedup.items()}
    return {f"baseline_{name}_ms": known.get(name) for name in ("eager", "compile")}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), sort_keys=True)
