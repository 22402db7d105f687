"""The learned cost model: gradient-boosted trees that predict a kernel's speed from timed kernels.

Before a build, the features are a kernel's choices and its problem; after it, also figures of its machine code. The
target is the logarithm of a kernel's speedup over the median of its problem's kernels, so that problems compare. A
model is used only if it orders kernels of held-out problems better than chance.
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
Known = Literal["before", "after"]  # the features known before or after the build

LEAST_KERNELS = 40
LEAST_PROBLEMS = 5
_LEAST_OF_A_PROBLEM = 4  # kernels of a problem below which their order says nothing
_FOLDS = 5
_STATIC = "static:"
_CODE_METRICS = ("code_bytes", "vector_bits", "stack_accesses", "kernel_calls")  # none depends on a time
_DEVICE_CLASSES: Mapping[str, DeviceClass] = {"cpp": "cpu"}
# The kind of constant that a knob is, by the first word that its name contains.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vector", ("lane", "vec", "width", "bits", "simd")),
    ("unroll", ("unroll", "chain", "accumul", "together")),
    ("ahead", ("prefetch", "ahead", "stage", "distance")),
    ("tile", ("tile", "row", "column", "depth", "block", "strip", "chunk", "group")),
    ("threads", ("warp", "thread")),
)


class Example(NamedTuple):
    """A timed kernel: its problem, its features, and the logarithm of its speedup."""

    problem: str
    features: Features
    log_speedup: float


class Learned(NamedTuple):
    """The result of learning. ``model`` is None if it must not be used, and ``reason`` then says why.

    ``rank_correlation``: Spearman's between prediction and truth within a held-out problem, averaged over problems,
    with its 95% interval; None if there were too few examples.
    """

    model: CostModel | None
    rank_correlation: Interval | None
    kernels: int
    problems: int
    reason: str = ""


def features_of(
    problem: Problem, candidate: Candidate, action: Mapping[str, Any], metrics: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The features of a kernel, without its time.

    Args:
        action: what was requested and done; it holds the offline Coder's schedule.
        metrics: figures of its machine code if it was built; see :func:`static_metrics`.
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
    """A kernel's resources from its profile, without anything that follows from its time."""
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
    """Train a model on examples and test it on held-out problems.

    Args:
        known: "after" to use figures of machine code as features as well.
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
    """Gradient-boosted trees trained on examples.

    Args:
        examples: timed kernels of several problems.
        known: "after" to use figures of machine code as features as well.
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
        """The logarithm of each kernel's expected speed over the median kernel of its problem."""
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
    """Spearman's rank correlation, with shared ranks for ties; 0 if all values of one side are equal."""
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
    """The rank correlation within held-out problems, with its interval over problems."""
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
    """Features of a problem: sizes of the timed variant, its category, and the number of operations in its text."""
    device_class = _DEVICE_CLASSES.get(candidate.backend, "gpu")
    variant = problem.meta.variants_for(device_class)[0]
    sizes = [math.log2(value) for value in variant.values() if not isinstance(value, bool | str) and value > 0]
    found = {f"problem:category={problem.meta.category}": 1.0, "problem:operations": float(_operations(problem.source))}
    if sizes:
        found |= {"problem:size": sum(sizes), "problem:largest": max(sizes), "problem:least": min(sizes)}
    return found


def _operations(source: str) -> int:
    """The number of calls and arithmetic operations in a reference's forward."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    forwards = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "forward"]
    return sum(isinstance(node, ast.Call | ast.BinOp) for forward in forwards for node in ast.walk(forward))
