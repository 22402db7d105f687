"""The static screen: rules over a candidate's text alone. The referee reads the text and runs none of it.

The screen is the first gate, not the last: a candidate that passes still runs in the sandbox against secret data. So
the screen refuses only code that has no honest use, and names its line.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from kernelwright.evaluator.screen.cpp import scan
from kernelwright.evaluator.screen.names import bound_names
from kernelwright.evaluator.screen.python import Inspector
from kernelwright.evaluator.screen.rules import RULES, Hit
from kernelwright.evaluator.screen.text import looks_like_source
from kernelwright.records import Backend, Finding, Status
from kernelwright.records.problems import OwnKernels

MAXIMUM_CHARACTERS = 1_000_000
_EVIDENCE_CHARACTERS = 160
_FINDINGS_PER_RULE = 5
_RANKS = {Status.INELIGIBLE: 1, None: 2}  # other refusals come first: they say more about a file
# Rules for code that may lead to the reference's own code. It has no use in a file that only calls libraries.
_REACHES_OUT = frozenset(("dynamic-code", "file-access", "introspection", "native-library"))


class ScreenResult(NamedTuple):
    """status: None if the candidate may go on. reason: that of the first refusing rule, or empty."""

    status: Status | None
    reason: str
    findings: tuple[Finding, ...]


def screen(source: str, backend: Backend, control: bool = False, own_kernels: OwnKernels = "some") -> ScreenResult:
    """Screen a candidate's file.

    Args:
        source: the exact text.
        backend: the backend of the submission; a ``triton`` candidate needs a ``triton.jit`` kernel.
        control: the file is not a candidate but a control (the reference itself, a library call). It needs no kernel of
            its own, and may call its module ``Model``.
        own_kernels: with ``any`` a file may call libraries alone, without a kernel of its own.
    """
    return _result(list(_hits(source, backend, control, own_kernels)))


def screen_source(text: str) -> ScreenResult:
    """Screen the C++ or CUDA text that is about to be compiled, however the candidate put it together."""
    if len(text) > MAXIMUM_CHARACTERS:
        return _result([Hit("too-large", 1, f"{len(text)} characters")])
    return _result(scan(text))


def _result(hits: list[Hit]) -> ScreenResult:
    hits.sort(key=lambda hit: (_RANKS.get(RULES[hit.rule].status, 0), hit.line))
    findings = tuple(_findings(hits))
    refusing = next((RULES[hit.rule] for hit in hits if RULES[hit.rule].status is not None), None)
    if refusing is None:
        return ScreenResult(None, "", findings)
    return ScreenResult(refusing.status, f"{refusing.reason} ({findings[0].where})", findings)


def _hits(source: str, backend: Backend, control: bool, own_kernels: OwnKernels) -> Iterator[Hit]:
    if len(source) > MAXIMUM_CHARACTERS:
        yield Hit("too-large", 1, f"{len(source)} characters")
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a candidate's invalid escapes are its own affair
            tree = ast.parse(source)
    except SyntaxError as error:
        yield Hit("syntax", error.lineno or 1, error.msg)
        return
    except (ValueError, RecursionError, MemoryError) as error:  # NUL bytes, nesting that exhausts the parser
        yield Hit("syntax", 1, type(error).__name__)
        return
    try:
        yield from _python_hits(tree, source, backend, control, own_kernels)
    except RecursionError:
        yield Hit("syntax", 1, "nested too deeply")


def _python_hits(
    tree: ast.Module, source: str, backend: Backend, control: bool, own_kernels: OwnKernels
) -> Iterator[Hit]:
    names = bound_names(tree.body)
    if "ModelNew" not in names and not (control and "Model" in names):
        yield Hit("no-model-new", 1, "")
    inspector = Inspector(source)
    inspector.inspect(tree)
    yield from inspector.hits
    for text, line in inspector.strings:
        if looks_like_source(text):
            yield from scan(text, line)
    if backend in inspector.kernel_backends or control:
        return
    if inspector.kernel_backends or own_kernels != "any":
        yield Hit("no-own-kernel", 1, ", ".join(sorted(inspector.kernel_backends)))
        return
    yield Hit("libraries-alone", 1, "")
    yield from (Hit("library-reach", hit.line, hit.evidence) for hit in inspector.hits if hit.rule in _REACHES_OUT)


def kernel_backends(source: str) -> frozenset[Backend]:
    """The backends that a file's kernels can count for, by their builders; empty if the file cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        inspector = Inspector(source)
        inspector.inspect(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    return frozenset(inspector.kernel_backends)


def _findings(hits: list[Hit]) -> Iterator[Finding]:
    """Yield findings in the hits' order, each once, and only a few for each rule."""
    seen: set[Finding] = set()
    counts: dict[str, int] = {}
    for hit in hits:
        evidence = "".join(c if c.isprintable() else " " for c in hit.evidence[: 4 * _EVIDENCE_CHARACTERS])
        evidence = " ".join(evidence.split())[:_EVIDENCE_CHARACTERS]
        rule = RULES[hit.rule]
        finding = Finding(rule=rule.id, effect=rule.effect, where=f"line {hit.line}", evidence=evidence)
        if finding not in seen and counts.get(rule.id, 0) < _FINDINGS_PER_RULE:
            counts[rule.id] = counts.get(rule.id, 0) + 1
            seen.add(finding)
            yield finding
