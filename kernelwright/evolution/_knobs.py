"""The search over the declared knobs of one candidate: which setting is tried next, by what earlier ones were worth.

It says what to try and is told what came of it, and never runs anything. The same tellings, in their order, with the
same seed give the same answers; nothing is kept on disk.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from kernelwright import inline
from kernelwright.errors import UsageError
from kernelwright.records import KnobValue, sha256_text

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import Trial

Setting = Mapping[str, KnobValue]
Sampler = Literal["tpe", "cma-es", "random"]
Rank = Callable[[Sequence[Setting]], Sequence[float]]  # what settings are expected to be worth, the larger the better

SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)
BATCH = 4  # settings that are proposed, and built, together
_DRAWS = 32  # proposals that are asked for, for each setting that is wanted: samplers repeat themselves
_PROPOSED = 4  # proposals for each setting that is wanted, where something ranks them
_STARTUP = 2 * BATCH + 1  # settings that TPE wants to know before it models anything
_FAILURE = 0.5  # how much worse than the worst a setting counts that failed, as a log-ratio
_FEW = 4096  # settings of a space that is listed to draw from what is left of it


class Knob(NamedTuple):
    """One constant with the values that it may have. Numbers are ordered, and stand in their order."""

    name: str
    values: tuple[KnobValue, ...]
    ordered: bool


class KnobSpace:
    """All settings of a candidate's knobs.

    Args:
        declared: the values of each knob.
        default: the setting that is there without a search. What it says of a knob counts among that knob's values.
    """

    def __init__(self, declared: Mapping[str, Sequence[KnobValue]], default: Setting) -> None:
        self.default: dict[str, KnobValue] = {name: default.get(name, values[0]) for name, values in declared.items()}
        self.knobs = tuple(_knob(name, values, self.default[name]) for name, values in declared.items())

    @classmethod
    def of(cls, source: str, knobs: Setting) -> KnobSpace:
        """The space of a candidate's text, whose default is what ``knobs`` and the text say."""
        return cls(inline.declared_knobs(source), inline.knob_settings(source, knobs))

    @property
    def free(self) -> tuple[Knob, ...]:
        """The knobs that have a choice."""
        return tuple(knob for knob in self.knobs if len(knob.values) > 1)

    @property
    def size(self) -> int:
        """How many settings there are."""
        return math.prod(len(knob.values) for knob in self.knobs)

    def __contains__(self, setting: Setting) -> bool:
        return all(knob.name in setting and _is_among(setting[knob.name], knob.values) for knob in self.knobs)

    def settings(self, near: Setting | None = None) -> Iterator[dict[str, KnobValue]]:
        """Every setting, those near one (or the default) first: fewest knobs changed, then by the least steps."""
        middle = self.default if near is None else near
        here = [_position(knob.values, middle[knob.name]) for knob in self.knobs]

        def distance(places: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
            steps = [abs(place - start) for place, start in zip(places, here, strict=True)]
            return sum(map(bool, steps)), sum(steps), places

        for places in sorted(itertools.product(*(range(len(knob.values)) for knob in self.knobs)), key=distance):
            yield {knob.name: knob.values[place] for knob, place in zip(self.knobs, places, strict=True)}

    def neighbours(self, setting: Setting) -> list[dict[str, KnobValue]]:
        """The settings that differ from one in a single knob, those of the least steps first."""
        found = []
        for place, knob in enumerate(self.knobs):
            here = _position(knob.values, setting[knob.name])
            for there, value in enumerate(knob.values):
                if there != here:
                    steps = abs(there - here) if knob.ordered else 1
                    found.append(
                        (steps, place, there, {**{k.name: setting[k.name] for k in self.knobs}, knob.name: value})
                    )
        return [changed for *_, changed in sorted(found, key=lambda entry: entry[:3])]

    def drawn(self, rng: random.Random) -> dict[str, KnobValue]:
        """A setting at random."""
        return {knob.name: rng.choice(knob.values) for knob in self.knobs}


def key_of(setting: Setting) -> str:
    """What tells settings apart; True is not 1 here."""
    return json.dumps(dict(setting), sort_keys=True)


def require_sampler(sampler: Sampler, space: KnobSpace) -> None:
    """UsageError where a sampler cannot search a space."""
    unordered = [knob.name for knob in space.free if not knob.ordered]
    if sampler == "cma-es" and (unordered or len(space.free) < 2):
        why = f"{', '.join(unordered)} has no order" if unordered else "one knob alone has no directions"
        raise UsageError(
            f"CMA-ES searches two or more knobs that are numbers, and {why}", hint="use --sampler tpe, or random"
        )


class KnobSearch:
    """Says which settings to try, a few at once, and is told what each was worth.

    Small spaces are walked through, always near the best setting that is known. In others TPE, which has to draw at
    random until it knows something, is given the neighbours of the best one for that long; then a sampler proposes.
    Where something ranks settings before they are built, the best of several proposals are taken, and a walk goes in
    that order.

    Args:
        space: what there is to try.
        sampler: of Optuna: ``tpe``, ``cma-es`` or ``random``.
        seed: what all draws follow from, besides what is told.
        most: settings that may be judged, the default among them.
        batch: settings that are proposed together.
        rank: what settings are expected to be worth.

    Raises:
        UsageError: the sampler cannot search this space.
    """

    def __init__(
        self,
        space: KnobSpace,
        *,
        sampler: Sampler = "tpe",
        seed: str = "",
        most: int | None = None,
        batch: int = BATCH,
        rank: Rank | None = None,
    ) -> None:
        require_sampler(sampler, space)
        self.space = space
        self.exhaustive = most is not None and space.size <= most
        self._most = most
        self._batch = batch
        self._rank = rank
        self._seed = seed
        self._sampler: Sampler = sampler
        self._told: dict[str, float | None] = {}
        self._judged = 0
        self._pending: dict[str, dict[str, KnobValue]] = {}
        self._trials: dict[str, Trial] = {}  # of the sampler, for what is pending
        self._earlier: list[tuple[Setting, float | None]] = []  # told before the sampler was made
        self._study: Study | None = None
        self._walk: list[dict[str, KnobValue]] | None = None

    @property
    def left(self) -> int:
        """Settings that nothing is known of yet."""
        return self.space.size - len(self._told)

    def ask(self) -> tuple[dict[str, KnobValue], ...]:
        """The settings to try next: the same until one of them is told, and nothing where all is done.

        The first one is the default, alone: what others are held against.
        """
        if not self._pending:
            room = self.left if self._most is None else min(self._most - self._judged, self.left)
            count = min(self._batch, room)
            if count > 0:
                self._pending = {key_of(setting): setting for setting in self._next(count)}
        return tuple(self._pending.values())

    def tell(self, setting: Setting, value: float | None, *, judged: bool = True) -> None:
        """Take in what a setting is worth, whoever asked for it.

        Args:
            value: the logarithm of its speed over anything that is the same for all; None where it failed.
            judged: whether that took a judgement, which counts among ``most``.
        """
        key = key_of(setting)
        self._pending.pop(key, None)
        if key in self._told or setting not in self.space:
            return
        self._told[key] = value
        self._judged += judged
        trial = self._trials.pop(key, None)
        if self._study is not None and trial is not None:
            self._study.tell(trial, self._worth(value))
        elif self._study is not None:
            self._add(self._study, setting, value)
        else:
            self._earlier.append((dict(setting), value))

    def _next(self, count: int) -> list[dict[str, KnobValue]]:
        if key_of(self.space.default) not in self._told:
            return [self.space.default]
        if self.exhaustive:
            return list(itertools.islice((s for s in self._walked() if key_of(s) not in self._told), count))
        return self._proposed(count)

    @property
    def _best(self) -> Setting:
        """The best setting that is known, the first one of equals; the default where none passed."""
        passed = {key: value for key, value in self._told.items() if value is not None}
        if not passed:
            return self.space.default
        best: dict[str, KnobValue] = json.loads(max(passed, key=lambda key: passed[key]))
        return best

    def _walked(self) -> Sequence[dict[str, KnobValue]]:
        """All settings, in the order in which they are tried."""
        if self._rank is None:
            return list(self.space.settings(self._best))
        if self._walk is None:
            self._walk = list(self.space.settings())
            expected = dict(zip(map(key_of, self._walk), self._rank(self._walk), strict=True))
            self._walk.sort(key=lambda setting: -expected[key_of(setting)])
        return self._walk

    def _proposed(self, count: int) -> list[dict[str, KnobValue]]:
        """What the sampler proposes and nobody has tried; at random, where it only repeats itself."""
        wanted = min(count * (1 if self._rank is None else _PROPOSED), self.left)
        found: dict[str, dict[str, KnobValue]] = {}
        knows_little = self._sampler == "tpe" and len(self._told) < _STARTUP
        near = self.space.neighbours(self._best) if knows_little else []
        for setting in itertools.chain(near, self._sampled(wanted * _DRAWS)):
            key = key_of(setting)
            if key not in self._told:
                found.setdefault(key, setting)
            if len(found) == wanted:
                break
        for setting in self._untried(count - len(found), set(found)):
            found[key_of(setting)] = setting
        chosen = list(found.values())
        if self._rank is not None:
            expected = dict(zip(found, self._rank(chosen), strict=True))
            chosen.sort(key=lambda setting: -expected[key_of(setting)])
        return chosen[:count]

    def _sampled(self, draws: int) -> Iterator[dict[str, KnobValue]]:
        """What the sampler says, which is told at once where that is known."""
        with _quiet_optuna():
            study = self._study = self._study or self._made()
        for _ in range(draws):
            with _quiet_optuna():
                trial = study.ask(self._distributions())
            setting = self._setting_of(trial.params)
            key = key_of(setting)
            if key in self._told:
                study.tell(trial, self._worth(self._told[key]))
            else:
                self._trials.setdefault(key, trial)
            yield setting

    def _untried(self, count: int, but: set[str]) -> Iterator[dict[str, KnobValue]]:
        rng = random.Random(f"{self._seed}/{len(self._told)}")
        taken = {*self._told, *but}
        if self.space.size <= _FEW:
            rest = [setting for setting in self.space.settings() if key_of(setting) not in taken]
            yield from rng.sample(rest, min(max(count, 0), len(rest)))
            return
        while count > 0:
            setting = self.space.drawn(rng)
            if key_of(setting) not in taken:
                taken.add(key_of(setting))
                count -= 1
                yield setting

    def _worth(self, value: float | None) -> float:
        """A value as the sampler has it: what failed is worse than all that did not."""
        if value is not None:
            return value
        return min((known for known in self._told.values() if known is not None), default=0.0) - _FAILURE

    # ------------------------------------------------------------------------------------------- Optuna

    def _made(self) -> Study:
        import optuna

        study = optuna.create_study(direction="maximize", sampler=self._optunas_own())
        for setting, value in self._earlier:
            self._add(study, setting, value)
        self._earlier.clear()
        return study

    def _optunas_own(self) -> BaseSampler:
        from optuna import samplers

        seed = int(sha256_text(self._seed)[:8], 16)
        if self._sampler == "cma-es":
            return samplers.CmaEsSampler(seed=seed, n_startup_trials=1, warn_independent_sampling=False)
        if self._sampler == "random":
            return samplers.RandomSampler(seed=seed)
        return samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP)

    def _distributions(self) -> dict[str, BaseDistribution]:
        from optuna import distributions

        return {
            knob.name: distributions.IntDistribution(0, len(knob.values) - 1)
            if knob.ordered
            else distributions.CategoricalDistribution(tuple(range(len(knob.values))))
            for knob in self.space.free
        }

    def _setting_of(self, params: Mapping[str, Any]) -> dict[str, KnobValue]:
        return {knob.name: knob.values[int(params.get(knob.name, 0))] for knob in self.space.knobs}

    def _add(self, study: Study, setting: Setting, value: float | None) -> None:
        from optuna.trial import create_trial

        params = {knob.name: _position(knob.values, setting[knob.name]) for knob in self.space.free}
        made = create_trial(params=params, distributions=self._distributions(), value=self._worth(value))
        study.add_trial(made)


class _quiet_optuna:
    """Keeps Optuna's own log lines off standard error meanwhile."""

    def __enter__(self) -> None:
        from optuna import logging

        self._before = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)

    def __exit__(self, *details: object) -> None:
        from optuna import logging

        logging.set_verbosity(self._before)


def _knob(name: str, values: Sequence[KnobValue], default: KnobValue) -> Knob:
    every = tuple(values) if _is_among(default, values) else (default, *values)
    ordered = all(isinstance(value, int | float) and not isinstance(value, bool) for value in every)
    return Knob(name, tuple(sorted(every)) if ordered else every, ordered)


def _is_among(value: KnobValue, values: Sequence[KnobValue]) -> bool:
    return repr(value) in map(repr, values)


def _position(values: Sequence[KnobValue], value: KnobValue) -> int:
    return list(map(repr, values)).index(repr(value))
