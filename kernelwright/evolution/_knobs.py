"""The search over the declared knobs of one candidate: it chooses the next settings by the worth of earlier ones.

It proposes settings and is told their worth, and never runs anything. The same results in the same order with the same
seed give the same proposals. Nothing is kept on disk.
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
Rank = Callable[[Sequence[Setting]], Sequence[float]]  # the expected worth of settings, larger is better

SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)
BATCH = 4  # settings that are proposed and built together
_DRAWS = 32  # draws from the sampler for each wanted setting, since samplers repeat themselves
_PROPOSED = 4  # proposals for each wanted setting if there is a ranking
_STARTUP = 2 * BATCH + 1  # settings that TPE needs before it models anything
_FAILURE = 0.5  # log-ratio by which a failed setting counts as worse than the worst
_FEW = 4096  # a space of at most this many settings is listed, to draw from the untried ones


class Knob(NamedTuple):
    """One constant with its possible values. Numbers are ordered and sorted."""

    name: str
    values: tuple[KnobValue, ...]
    ordered: bool


class KnobSpace:
    """All settings of a candidate's knobs.

    Args:
        declared: the values of each knob.
        default: the setting without a search. Its values count among the possible values of the knobs.
    """

    def __init__(self, declared: Mapping[str, Sequence[KnobValue]], default: Setting) -> None:
        self.default: dict[str, KnobValue] = {name: default.get(name, values[0]) for name, values in declared.items()}
        self.knobs = tuple(_knob(name, values, self.default[name]) for name, values in declared.items())

    @classmethod
    def of(cls, source: str, knobs: Setting) -> KnobSpace:
        """The space of a candidate's text. Its default is given by ``knobs`` and the text."""
        return cls(inline.declared_knobs(source), inline.knob_settings(source, knobs))

    @property
    def free(self) -> tuple[Knob, ...]:
        """The knobs with more than one value."""
        return tuple(knob for knob in self.knobs if len(knob.values) > 1)

    @property
    def size(self) -> int:
        """The number of settings."""
        return math.prod(len(knob.values) for knob in self.knobs)

    def __contains__(self, setting: Setting) -> bool:
        return all(knob.name in setting and _is_among(setting[knob.name], knob.values) for knob in self.knobs)

    def settings(self, near: Setting | None = None) -> Iterator[dict[str, KnobValue]]:
        """Every setting, ordered by distance from ``near`` or the default: fewest changed knobs, then fewest steps."""
        middle = self.default if near is None else near
        here = [_position(knob.values, middle[knob.name]) for knob in self.knobs]

        def distance(places: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
            steps = [abs(place - start) for place, start in zip(places, here, strict=True)]
            return sum(map(bool, steps)), sum(steps), places

        for places in sorted(itertools.product(*(range(len(knob.values)) for knob in self.knobs)), key=distance):
            yield {knob.name: knob.values[place] for knob, place in zip(self.knobs, places, strict=True)}

    def neighbours(self, setting: Setting) -> list[dict[str, KnobValue]]:
        """The settings that differ from ``setting`` in a single knob, those with the fewest steps first."""
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
        """A random setting."""
        return {knob.name: rng.choice(knob.values) for knob in self.knobs}


def key_of(setting: Setting) -> str:
    """A key that distinguishes settings; True and 1 have different keys."""
    return json.dumps(dict(setting), sort_keys=True)


def require_sampler(sampler: Sampler, space: KnobSpace) -> None:
    """Raise UsageError if a sampler cannot search a space."""
    unordered = [knob.name for knob in space.free if not knob.ordered]
    if sampler == "cma-es" and (unordered or len(space.free) < 2):
        why = f"{', '.join(unordered)} has no order" if unordered else "one knob alone has no directions"
        raise UsageError(
            f"CMA-ES searches two or more knobs that are numbers, and {why}", hint="use --sampler tpe, or random"
        )


class KnobSearch:
    """Proposes settings, a few at once, and is told the worth of each.

    Small spaces are walked through, always near the best known setting. In other spaces a sampler proposes settings.
    TPE would draw at random until it has some results, so until then the neighbours of the best setting are proposed.
    If there is a ranking, the best of several proposals are taken, and a walk goes in the order of the ranking.

    Args:
        space: the settings to search.
        sampler: Optuna's sampler: ``tpe``, ``cma-es`` or ``random``.
        seed: random seed of all draws.
        most: most settings that may be judged, including the default.
        batch: number of settings that are proposed together.
        rank: predicts the worth of settings.

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
        self._trials: dict[str, Trial] = {}  # the sampler's trials for pending settings
        self._earlier: list[tuple[Setting, float | None]] = []  # results from before the sampler was made
        self._study: Study | None = None
        self._walk: list[dict[str, KnobValue]] | None = None

    @property
    def left(self) -> int:
        """The number of settings without a result."""
        return self.space.size - len(self._told)

    def ask(self) -> tuple[dict[str, KnobValue], ...]:
        """The settings to try next: the same ones until the result of one is told; empty if the search is done.

        The first proposal is the default alone, since other settings are compared with it.
        """
        if not self._pending:
            room = self.left if self._most is None else min(self._most - self._judged, self.left)
            count = min(self._batch, room)
            if count > 0:
                self._pending = {key_of(setting): setting for setting in self._next(count)}
        return tuple(self._pending.values())

    def tell(self, setting: Setting, value: float | None, *, judged: bool = True) -> None:
        """Record the worth of a setting, even if this search did not propose it.

        Args:
            value: the logarithm of its speed over a reference that is the same for all settings; None if it failed.
            judged: whether it took a judgement, which counts towards ``most``.
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
        """The best known setting, the first one of equals; the default if none passed."""
        passed = {key: value for key, value in self._told.items() if value is not None}
        if not passed:
            return self.space.default
        best: dict[str, KnobValue] = json.loads(max(passed, key=lambda key: passed[key]))
        return best

    def _walked(self) -> Sequence[dict[str, KnobValue]]:
        """All settings, in the order of a walk."""
        if self._rank is None:
            return list(self.space.settings(self._best))
        if self._walk is None:
            self._walk = list(self.space.settings())
            expected = dict(zip(map(key_of, self._walk), self._rank(self._walk), strict=True))
            self._walk.sort(key=lambda setting: -expected[key_of(setting)])
        return self._walk

    def _proposed(self, count: int) -> list[dict[str, KnobValue]]:
        """Untried settings from the sampler; random ones if the sampler only repeats itself."""
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
        """Draws of the sampler. If a drawn setting has a result already, the sampler is told at once."""
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
        """The value for the sampler: a failed setting counts as worse than all that passed."""
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
    """Context manager that keeps Optuna's log lines off standard error."""

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
