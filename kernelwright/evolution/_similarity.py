"""Similarity of two problems, by the operators of their references and by the bounds of their kernels."""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.datasets import operator_category

# Weights of operators by kind: an operator with a structure of its own shapes a kernel more than one fused into it.
_WEIGHTS: Mapping[str, float] = {
    "attention": 4.0,
    "convolution": 4.0,
    "product": 4.0,
    "recurrence": 4.0,
    "normalisation": 3.0,
    "pooling": 3.0,
    "scan": 3.0,
    "softmax": 3.0,
    "gather": 2.0,
    "loss": 2.0,
    "order": 2.0,
    "reduction": 2.0,
    "pointwise": 1.0,
    "other": 1.0,
    "view": 0.25,
}
_KIND_SHARE = 0.5  # share of an operator's weight that goes to its kind: two different norms are similar
_OTHER_BOUND, _UNKNOWN_BOUND = 0.5, 0.75


def similarity(ours: Mapping[str, int], theirs: Mapping[str, int]) -> float:
    """Weighted Jaccard similarity of two bags of operators and of their kinds, from 0 to 1."""
    first, second = _features(ours), _features(theirs)
    names = first.keys() | second.keys()
    either = sum(max(first.get(name, 0.0), second.get(name, 0.0)) for name in sorted(names))
    both = sum(min(first.get(name, 0.0), second.get(name, 0.0)) for name in sorted(names))
    return both / either if either else 0.0


def closeness(ours: Mapping[str, int], our_bound: str, theirs: Mapping[str, int], their_bound: str) -> float:
    """:func:`similarity`, reduced if the kernels have different bounds or an unknown bound."""
    alike = similarity(ours, theirs)
    if "unknown" in (our_bound, their_bound):
        return alike * _UNKNOWN_BOUND
    return alike * (1.0 if our_bound == their_bound else _OTHER_BOUND)


def _features(operators: Mapping[str, int]) -> dict[str, float]:
    """Weights of operators and kinds; they grow with the square root of the number of occurrences."""
    found: dict[str, float] = {}
    kinds: dict[str, int] = {}
    for name, count in operators.items():
        kind = operator_category(name)
        found[name] = (1 - _KIND_SHARE) * _WEIGHTS[kind] * count**0.5
        kinds[kind] = kinds.get(kind, 0) + count
    for kind, count in kinds.items():
        found[f"kind {kind}"] = _KIND_SHARE * _WEIGHTS[kind] * count**0.5
    return found
