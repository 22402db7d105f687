"""What a kernel will probably be worth, learned from those that were timed: gradient-boosted trees over what is known.

Before a kernel is built its choices and its problem are known; afterwards figures of its machine code as well. What is
learned is the logarithm of a kernel's speedup over the median of its problem's kernels, so that problems compare. A
model is only used where it was shown, on problems that it had not seen, to order kernels better than chance does.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kernelwright import inline
from kernelwright.evaluator import bootstrap_interval
from kernelwright.records import Candidate, DeviceClass, Interval, Problem, Profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

Features = Mapping[str, float]
Known = Literal["before", "after"]  # the build

LEAST_KERNELS = 40
LEAST_PROBLEMS = 5
_LEAST_OF_A_PROBLEM = 4  # kernels whose order says something
_FOLDS = 5
_STATIC = "static:"
_CODE_METRICS = ("code_bytes", "vector_bits", "stack_accesses", "kernel_calls")  # no time is in any of them
_DEVICE_CLASSES: Mapping[str, DeviceClass] = {"cpp": "cpu"}
# What sort of constant a knob is, by the first word that its name holds.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vector", ("lane", "vec", "width", "bits", "simd")),
    ("unroll", ("unroll", "chain", "accumul", "together")),
    ("ahead", ("prefetch", "ahead", "stage", "distance")),
    ("tile", ("tile", "row", "column", "depth", "block", "strip", "chunk", "group")),
    ("threads", ("warp", "thread")),
)


class Example(NamedTuple):
    """A kernel that was timed: its problem, what was known of it, and the logarithm of its speedup."""

    problem: str
    features: Features
    log_speedup: float


class Learned(NamedTuple):
    """What examples taught. ``model`` is None where it is not to be used, and ``reason`` says why.

    ``rank_correlation``: Spearman's between forecast and truth within a problem that was held out, on average over
    problems, with its 95% interval; None where there were too few to say.
    """

    model: CostModel | None
    rank_correlation: Interval | None
    kernels: int
    problems: int
    reason: str = ""


def features_of(
    problem: Problem, candidate: Candidate, action: Mapping[str, Any], metrics: Mapping[str, float] | None = None
) -> dict[str, float]:
    """What is known of a kernel without its time.

    Args:
        action: what was asked for and done, where the offline Coder's schedule stands.
        metrics: figures of its machine code, where it was built; see :func:`static_metrics`.
    """
    found = _problem_features(problem, candidate) | {f"backend={candidate.backend}": 1.0}
    choices = {**(action.get("schedule") or {}), **inline.knob_settings(candidate.source, candidate.knobs)}
    for name, value in choices.items():
        if isinstance(value, str):
            found[f"choice:{name}={value}"] = 1.0
            continue
        found[f"choice:{name}"] = float(value)
        kind = f"kind:{_kind(name)}"
        found[kind] = found.get(kind, 0.0) + math.log2(1.0 + abs(float(value)))
    for name in ("bytes_moved", "flops"):
        if action.get(name):
            found[f"problem:{name}"] = math.log2(1.0 + float(action[name]))
    return found | {f"{_STATIC}{name}": value for name, value in (metrics or {}).items()}


def static_metrics(profile: Profile | None) -> dict[str, float]:
    """What a profile says of a kernel's resources; nothing that follows from its time."""
    if profile is None:
        return {}
    found = {name: profile.metrics[name] for name in _CODE_METRICS if name in profile.metrics}
    kernels = [kernel for kernel in profile.kernels if kernel.registers is not None]
    if kernels:
        found["registers"] = float(max(kernel.registers or 0 for kernel in kernels))
        found["spilled_bytes"] = float(sum(kernel.spilled_bytes or 0 for kernel in kernels))
        found["shared_bytes"] = float(max(kernel.shared_bytes for kernel in kernels))
        found["instructions"] = float(sum(kernel.instructions or 0 for kernel in kernels))
        occupancies = [kernel.occupancy for kernel in kernels if kernel.occupancy is not None]
        found |= {"occupancy": min(occupancies)} if occupancies else {}
    return found


def learn(examples: Sequence[Example], known: Known = "before") -> Learned:
    """Learn from examples, and see on held-out problems whether that is worth anything.

    Args:
        known: whether figures of machine code count among what is known.
    """
    by_problem: dict[str, list[Example]] = {}
    for example in examples:
        by_problem.setdefault(example.problem, []).append(example)
    telling = {name: rows for name, rows in by_problem.items() if len(rows) >= _LEAST_OF_A_PROBLEM}
    rows = [row for found in telling.values() for row in found]
    if len(telling) < LEAST_PROBLEMS or len(rows) < LEAST_KERNELS:
        reason = f"only {len(rows)} kernels of {len(telling)} problems were timed here"
        return Learned(None, None, len(rows), len(telling), reason)
    correlation = _held_out(rows, known)
    if correlation is None or correlation.low <= 0:
        return Learned(None, correlation, len(rows), len(telling), "it orders kernels no better than chance")
    return Learned(CostModel(rows, known), correlation, len(rows), len(telling))


class CostModel:
    """Trees that were grown on examples.

    Args:
        examples: timed kernels of several problems.
        known: whether figures of machine code count among what is known.
    """

    def __init__(self, examples: Sequence[Example], known: Known) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor

        self._names = sorted({name for example in examples for name in example.features if _counts(name, known)})
        self._trees = HistGradientBoostingRegressor(
            max_iter=120,
            learning_rate=0.08,
            max_leaf_nodes=15,
            min_samples_leaf=5,
            early_stopping=False,
            random_state=0,
        )
        self._trees.fit(self._table([example.features for example in examples]), _targets(examples))

    def predict(self, kernels: Sequence[Features]) -> list[float]:
        """The logarithm of each kernel's expected speed over that of others of its problem."""
        return [float(value) for value in self._trees.predict(self._table(kernels))] if kernels else []

    def _table(self, kernels: Sequence[Features]) -> FloatArray:
        import numpy as np

        table = np.full((len(kernels), len(self._names)), np.nan)
        places = {name: place for place, name in enumerate(self._names)}
        for row, features in enumerate(kernels):
            for name, value in features.items():
                if name in places and math.isfinite(value):
                    table[row, places[name]] = value
        return table


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's: of the ranks, ties sharing theirs; 0 where one of them has no order."""
    import numpy as np

    ranks = [_ranks(values) for values in (a, b)]
    if any(float(np.ptp(found)) == 0.0 for found in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Sequence[float]) -> FloatArray:
    import numpy as np

    x = np.asarray(values, dtype=np.float64)
    return np.array([(np.sum(x < value) + np.sum(x <= value)) / 2 for value in x])


def _held_out(examples: Sequence[Example], known: Known) -> Interval | None:
    """The rank correlation within problems that a model was not grown on, with its interval over problems."""
    from statistics import mean

    from sklearn.model_selection import GroupKFold

    groups = [example.problem for example in examples]
    found: dict[str, float] = {}
    for train, test in GroupKFold(min(_FOLDS, len(set(groups)))).split(groups, groups=groups):
        model = CostModel([examples[i] for i in train], known)
        for name in sorted({groups[i] for i in test}):
            rows = [examples[i] for i in test if groups[i] == name]
            truth = [row.log_speedup for row in rows]
            found[name] = rank_correlation(model.predict([row.features for row in rows]), truth)
    values = [found[name] for name in sorted(found)]
    low, high = bootstrap_interval(values)
    return Interval(median=mean(values), low=low, high=high)


def _targets(examples: Sequence[Example]) -> list[float]:
    """Each example's log speedup over the median of its problem."""
    from statistics import median

    by_problem: dict[str, list[float]] = {}
    for example in examples:
        by_problem.setdefault(example.problem, []).append(example.log_speedup)
    usual = {name: median(values) for name, values in by_problem.items()}
    return [example.log_speedup - usual[example.problem] for example in examples]


def _counts(name: str, known: Known) -> bool:
    return known == "after" or not name.startswith(_STATIC)


def _kind(name: str) -> str:
    lowered = name.lower()
    return next((kind for kind, words in _KINDS if any(word in lowered for word in words)), "other")


def _problem_features(problem: Problem, candidate: Candidate) -> dict[str, float]:
    """Sizes of the timed variant, what category it is of, and how many operations its text has."""
    device_class = _DEVICE_CLASSES.get(candidate.backend, "gpu")
    variant = problem.meta.variants_for(device_class)[0]
    sizes = [math.log2(value) for value in variant.values() if not isinstance(value, bool | str) and value > 0]
    found = {f"problem:category={problem.meta.category}": 1.0, "problem:operations": float(_operations(problem.source))}
    if sizes:
        found |= {"problem:size": sum(sizes), "problem:largest": max(sizes), "problem:least": min(sizes)}
    return found


def _operations(source: str) -> int:
    """Calls and arithmetic of a reference's forward."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    forwards = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "forward"]
    return sum(isinstance(node, ast.Call | ast.BinOp) for forward in forwards for node in ast.walk(forward))
