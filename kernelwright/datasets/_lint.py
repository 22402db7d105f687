"""Lint of a problem, trusted side: checks the syntax tree, and validates the findings of the sandboxed run."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pydantic import ValidationError

from kernelwright.datasets._contract import find_forward, module_constants, own_nodes
from kernelwright.datasets._findings import TOO_SMALL, LintFinding, printable
from kernelwright.errors import MachineError
from kernelwright.records import DeviceClass, KnobValue, Problem
from kernelwright.records.problems import VARIANT_MARK

LINT_ENTRY = "kernelwright.datasets._entries:lint"

_RANDOM = re.compile(
    r"(rand|randn|randint)(_like)?|randperm|normal_?|uniform_|bernoulli_?|multinomial|(alpha_|feature_alpha_)?dropout[123d]*"
)
_NO_RULE_NAME = re.compile(r"[^a-z0-9-]")
_MAX_FINDINGS = 64
_DOWNLOADS = ("from_pretrained", "load_state_dict_from_url", "hf_hub_download", "snapshot_download")
_FAILING = ("error", "warning")  # severities, worst first, that make a problem fail


class KeepsFindings(Protocol):
    """Stores the findings of lint runs; see :class:`kernelwright.datasets.LintRecords`."""

    def put(self, problem: Problem, findings: Sequence[LintFinding], device_class: DeviceClass = ...) -> None:
        """Store the findings of a run, in place of those of an earlier one."""
        ...


def lint_static(problem: Problem) -> tuple[LintFinding, ...]:
    """Weaknesses found in the problem's text, sorted by line. Nothing is executed.

    If the text is nested too deeply for Python to parse, that is the finding.
    """
    try:
        tree = ast.parse(problem.source)
    except (RecursionError, MemoryError):  # the depth at which this fails depends on the caller's depth
        message = "the file is nested too deeply to be read"
        return (LintFinding(rule="invalid-reference", severity="error", message=message),)
    found = [finding for rule in _STATIC_RULES for finding in rule(problem, tree)]
    return tuple(sorted(found, key=lambda finding: (finding.line or 0, finding.rule)))


def lint_payload(problem: Problem, device_class: DeviceClass = "cpu") -> dict[str, Any]:
    """The payload for :data:`LINT_ENTRY`, which runs the timed variant of ``problem`` in a sandbox."""
    variant: Mapping[str, KnobValue] = problem.meta.variants_for(device_class)[0]
    return {
        "source": problem.source,
        "variant": dict(variant),
        "mode": problem.meta.mode,
        "randomness": _randomness(problem),
    }


def lint_findings(reply: Mapping[str, Any]) -> tuple[LintFinding, ...]:
    """The findings in a reply of :data:`LINT_ENTRY`. Untrusted code sent the reply, so it is validated and truncated.

    Raises:
        MachineError: the reply is malformed.
    """
    claimed = reply.get("findings")
    if not isinstance(claimed, list):
        raise MachineError("the lint worker's reply has no findings", hint="run the lint again")
    try:
        findings = [LintFinding.model_validate(item) for item in claimed[:_MAX_FINDINGS]]
    except ValidationError as error:
        raise MachineError(f"the lint worker's reply is malformed: {error.errors()[0]['msg']}") from None
    return tuple(
        finding.model_copy(
            update={"rule": _NO_RULE_NAME.sub("", finding.rule)[:60], "message": printable(finding.message[:500])}
        )
        for finding in findings
    )


def lint(
    problem: Problem,
    call: Callable[[str, dict[str, Any]], Mapping[str, Any]],
    device_class: DeviceClass = "cpu",
    *,
    records: KeepsFindings | None = None,
    sized: Problem | None = None,
) -> tuple[LintFinding, ...]:
    """All findings, errors first: those of :func:`lint_static` and of a run through ``call`` (``Sandbox.call``).

    Args:
        records: stores the findings of the run, so that tables can show them later.
        sized: the problem in other sizes, in which it is run. How long that takes is no finding then.
    """
    ran = lint_findings(call(LINT_ENTRY, lint_payload(sized or problem, device_class)))
    if sized is not None and sized != problem:
        said = f"it was run in fitted sizes ({sized.id.rpartition(VARIANT_MARK)[2]})"
        ran = tuple(finding for finding in ran if finding.rule != TOO_SMALL)
        ran = (*ran, LintFinding(rule="fitted-sizes", severity="info", message=said))
    if records is not None:
        records.put(problem, ran, device_class)
    found = (*lint_static(problem), *ran)
    return tuple(sorted(found, key=lambda finding: ("error", "warning", "info").index(finding.severity)))


def lint_rules(findings: Iterable[LintFinding]) -> tuple[str, ...]:
    """The rules that a problem fails, each once, errors before warnings. Infos are left out."""
    listed = list(findings)
    return tuple(dict.fromkeys(rule for severity in _FAILING for rule in _rules_of(listed, severity)))


def lint_summary(findings: Iterable[LintFinding]) -> str:
    """The rules that a problem breaks, worst first, for a table cell; empty if it breaks none.

    Infos are left out.
    """
    listed = list(findings)
    rules = {severity: _rules_of(listed, severity) for severity in _FAILING}
    return "; ".join(f"{severity}: {', '.join(broken)}" for severity, broken in rules.items() if broken)


def _rules_of(findings: Iterable[LintFinding], severity: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(finding.rule for finding in findings if finding.severity == severity))


# --------------------------------------------------------------------------------------------------- static rules


_UNDECLARED = "its data is what get_inputs draws, and numbers far from zero"


def _metadata(problem: Problem, tree: ast.Module) -> Iterator[LintFinding]:
    meta = problem.meta
    if "PROBLEM" not in module_constants(tree):
        message = f"no PROBLEM metadata: {_UNDECLARED}, in one shape"
        yield LintFinding(rule="no-metadata", severity="info", message=message)
        return
    line = module_constants(tree)["PROBLEM"].lineno
    forward = find_forward(tree)
    if not meta.inputs:
        message = f"no input has a declared domain: {_UNDECLARED}"
        yield LintFinding(rule="no-domains", severity="info", message=message, line=line)
    elif forward is not None and forward.args.vararg is None:
        for argument in (*forward.args.posonlyargs, *forward.args.args)[1:]:
            if argument.arg not in meta.inputs:
                message = f"input {argument.arg} has no declared domain: {_UNDECLARED}"
                yield LintFinding(rule="undeclared-input", severity="warning", message=message, line=argument.lineno)
    for device_class, variants in meta.variants.items():
        if len(variants) == 1:
            message = f"only one {device_class} variant: a kernel may be right for that shape alone"
            yield LintFinding(rule="single-variant", severity="info", message=message, line=line)
        if any(variant == earlier for i, variant in enumerate(variants) for earlier in variants[:i]):
            message = f"two {device_class} variants are the same"
            yield LintFinding(rule="repeated-variant", severity="warning", message=message, line=line)


def _frozen_constants(problem: Problem, tree: ast.Module) -> Iterator[LintFinding]:
    """A constant computed from a variant's constant at import keeps its old value when the variant is set."""
    varied = {name for variants in problem.meta.variants.values() for variant in variants for name in variant}
    for name, value in module_constants(tree).items():
        for used in sorted(_names(value) & varied):
            message = f"{name} is computed from {used} at import, so variants that set {used} do not change it"
            yield LintFinding(rule="frozen-constant", severity="error", message=message, line=value.lineno)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
                for used in sorted(_names(default) & varied):
                    message = f"a default argument takes {used} at import, so variants do not change it"
                    yield LintFinding(rule="frozen-constant", severity="error", message=message, line=default.lineno)


def _unused_variants(problem: Problem, tree: ast.Module) -> Iterator[LintFinding]:
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for name in sorted({name for vs in problem.meta.variants.values() for v in vs for name in v} - used):
        value = module_constants(tree).get(name)  # None if the file has no such constant
        message = f"variants set {name}, but nothing reads it"
        line = None if value is None else value.lineno
        yield LintFinding(rule="unused-constant", severity="warning", message=message, line=line)


def _unused_inputs(problem: Problem, tree: ast.Module) -> Iterator[LintFinding]:
    forward = find_forward(tree)
    if forward is None:
        return
    read = {n.id for n in ast.walk(forward) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for argument in (*forward.args.posonlyargs, *forward.args.args)[1:]:
        if argument.arg not in read:
            message = f"forward never reads its input {argument.arg}"
            yield LintFinding(rule="unused-input", severity="error", message=message, line=argument.lineno)


def _randomness(problem: Problem) -> str:
    """The declared randomness of the problem's output: ``none``, ``seeded`` or ``distribution``."""
    return str(getattr(problem.meta, "randomness", "none"))


def _random_forward(problem: Problem, tree: ast.Module) -> Iterator[LintFinding]:
    forward = find_forward(tree)
    if forward is None or _randomness(problem) != "none":
        return
    for node in own_nodes(forward):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if _RANDOM.fullmatch(name):
                message = f"forward calls {name}: a random result cannot be compared"
                yield LintFinding(rule="calls-random", severity="warning", message=message, line=node.lineno)


def _forward_only(problem: Problem, tree: ast.Module) -> Iterator[LintFinding]:
    if problem.meta.backward:
        message = "the problem asks for gradients; the lint checked only its forward"
        yield LintFinding(rule="forward-only", severity="info", message=message)


def _heavy_ops(problem: Problem, tree: ast.Module) -> Iterator[LintFinding]:
    for name in problem.meta.heavy_ops:
        if not name.startswith("aten."):
            message = f"heavy_ops names {name!r}; operators are named like aten.mm"
            yield LintFinding(rule="heavy-op-name", severity="warning", message=message)


def _needs_packages(problem: Problem, tree: ast.Module) -> Iterator[LintFinding]:
    """Report imported packages that are not installed. Only their names are looked up; nothing is imported."""
    told: set[str] = set()
    spared = _guarded(tree)
    for node in ast.walk(tree):
        for name in () if node in spared else dict.fromkeys(_imported(node)):
            if name not in told and not _is_here(name):
                told.add(name)
                message = f"needs the package {name}, which is not installed"
                line: int | None = getattr(node, "lineno", None)
                yield LintFinding(rule="needs-package", severity="error", message=message, line=line)


def _guarded(tree: ast.Module) -> set[ast.AST]:
    """Nodes of ``try`` statements whose imports may be missing: bodies with a fallback, and fallbacks not used here.

    A handler that raises is not a fallback. A fallback is not used if all imports of its body are installed.
    """
    spared: set[ast.AST] = set()
    for guard in (node for node in ast.walk(tree) if isinstance(node, ast.Try)):
        catching = [handler for handler in guard.handlers if _catches_imports(handler)]
        tried = [node for statement in guard.body for node in ast.walk(statement)]
        instead = [node for handler in catching for node in ast.walk(handler)]
        if catching and not any(isinstance(node, ast.Raise) for node in instead):
            spared.update(tried)
        if catching and all(_is_here(name) for node in tried for name in _imported(node)):
            spared.update(instead)
    return spared


def _imported(node: ast.AST) -> list[str]:
    """The packages that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module.partition(".")[0]]
    return []


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    named = () if handler.type is None else ast.walk(handler.type)
    names = {node.id for node in named if isinstance(node, ast.Name)}
    return handler.type is None or bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


def _is_here(package: str) -> bool:
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _needs_weights(problem: Problem, tree: ast.Module) -> Iterator[LintFinding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _DOWNLOADS:
            message = f"{node.attr} fetches a model when the problem is made, and workers have no network"
            yield LintFinding(rule="needs-weights", severity="error", message=message, line=node.lineno)
            return


def _names(node: ast.expr) -> set[str]:
    """Names that are read when an expression is evaluated. A lambda inside reads its names later."""
    found: set[str] = set()
    todo: list[ast.AST] = [node]
    while todo:  # no recursion, because a hostile file may be nested more deeply than Python's stack
        inner = todo.pop()
        if isinstance(inner, ast.Name):
            found.add(inner.id)
        elif isinstance(inner, (ast.expr, ast.comprehension)) and not isinstance(inner, ast.Lambda):
            todo.extend(ast.iter_child_nodes(inner))
    return found


_STATIC_RULES: tuple[Callable[[Problem, ast.Module], Iterator[LintFinding]], ...] = (
    _forward_only,
    _frozen_constants,
    _heavy_ops,
    _metadata,
    _needs_packages,
    _needs_weights,
    _random_forward,
    _unused_inputs,
    _unused_variants,
)
