"""Sets constants of a problem's file to other values, for example so that a small machine can run it.

The text itself is changed, unlike with a variant: a constant that is computed from another one follows it. The sizes
become part of the problem's id (``KernelBench/level1/softmax@batch_size=16``), so that its results are not mistaken for
those of the original problem. :mod:`_places` defines the names by which sizes can be set.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence

from kernelwright.config import NAMES
from kernelwright.datasets._contract import parse_problem
from kernelwright.datasets._places import places_of
from kernelwright.errors import UsageError
from kernelwright.records import KnobValue, Problem
from kernelwright.records.problems import VARIANT_MARK

_NAME = re.compile(r"[^\W\d]\w*(\.\w+)*")  # dim, layer_sizes.0, CONFIG.model.dim
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # a line as Python counts it; str.splitlines splits more


def resized(problem: Problem, sizes: Mapping[str, KnobValue]) -> Problem:
    """A problem with constants of its file set to other values; the problem itself if ``sizes`` is empty.

    Variants that set one of these constants get its new value and keep their other ones. The first variant is timed.

    Raises:
        UsageError: the file has no such constant, or its value is of another type.
        InvalidReferenceError: the changed file breaks the contract.
    """
    if not sizes:
        return problem
    declared = problem.declared
    source = _with(declared, sizes)
    known_as, _, before = declared.id.partition(VARIANT_MARK)
    told = {**parse_sizes(before), **sizes} if before else dict(sizes)
    made = parse_problem(
        source,
        id=f"{known_as}{VARIANT_MARK}{sizes_in_words(told)}",
        suite=declared.suite,
        level=declared.level,
        name=declared.name,
        number=declared.number,
        path=declared.path,
    )
    variants = {
        kind: tuple(dict.fromkeys(_items({**one, **{n: v for n, v in sizes.items() if n in one}}) for one in several))
        for kind, several in made.meta.variants.items()
    }
    meta = made.meta.model_copy(update={"variants": {k: tuple(dict(one) for one in v) for k, v in variants.items()}})
    return made.model_copy(update={"meta": meta})


def with_sizes(problems: Sequence[Problem], sizes: Mapping[str, KnobValue]) -> list[Problem]:
    """Each problem, with those sizes set for which its file has constants.

    Raises:
        UsageError: no problem has such a constant, or its value in one is of another type.
    """
    places = [places_of(ast.parse(problem.source)) for problem in problems]
    known = [{name for name in sizes if found.named(name)} for found in places]
    for name in sizes:
        if not any(name in names for names in known):
            named = [item for found in places[:1] for item in found.constants.items()]
            constants = sorted(name for name, nodes in named if "." not in name or any(map(_is_number, nodes)))
            hint = NAMES.hint(name)
            if near := difflib.get_close_matches(name, constants, n=2):
                hint = f"did you mean {' or '.join(near)}?"
            elif not hint:
                hint = f"constants of {problems[0].id}: {', '.join(constants)}" if constants else "name a problem"
            raise UsageError(f"{name} is neither a setting nor a constant of these problems", hint=hint, name=name)
    return [
        resized(problem, {name: value for name, value in sizes.items() if name in names})
        for problem, names in zip(problems, known, strict=True)
    ]


def parse_sizes(text: str) -> dict[str, KnobValue]:
    """Parse sizes such as ``batch_size=16,dim=64``.

    Raises:
        UsageError: the text is not of this form.
    """
    found: dict[str, KnobValue] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (_NAME.fullmatch(name) and equals and value):
            raise UsageError(f"not a size: {part!r}", hint="write NAME=VALUE,NAME=VALUE, such as batch_size=16,dim=64")
        found[name] = _value(value)
    return found


def sizes_in_words(sizes: Mapping[str, KnobValue]) -> str:
    """Sizes as text, such as ``batch_size=16,dim=64``, sorted by name."""
    return ",".join(f"{name}={sizes[name]}" for name in sorted(sizes))


def _value(text: str) -> KnobValue:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if isinstance(value, (int, float, bool, str)) else text


def _items(variant: Mapping[str, KnobValue]) -> tuple[tuple[str, KnobValue], ...]:
    return tuple(variant.items())


def _with(problem: Problem, sizes: Mapping[str, KnobValue]) -> str:
    """The problem's text with new values of some constants, at each of their places."""
    places = places_of(ast.parse(problem.source))
    changes: list[tuple[ast.expr, KnobValue]] = []
    for name, value in sizes.items():
        nodes = places.named(name)
        if not nodes:
            known = sorted(name for name, found in places.constants.items() if any(map(_is_number, found)))
            hint = f"its constants are: {', '.join(known)}" if known else "it has no constants that are numbers"
            raise UsageError(f"{problem.id} has no constant {name}", hint=hint, name=name)
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) != isinstance(value, str):
                kind = type(node.value).__name__
                raise UsageError(
                    f"{problem.id}: {name} is of type {kind}, not {type(value).__name__}", hint=f"give a {kind}"
                )
            changes.append((node, value))
    lines = lines_of(problem.source)
    for node, value in sorted(changes, key=lambda change: (change[0].lineno, change[0].col_offset), reverse=True):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first, last = lines[node.lineno - 1].encode(), lines[node.end_lineno - 1].encode()
        after = last[node.end_col_offset :]
        blank = b"\n" * (node.end_lineno - node.lineno)  # the following text keeps its line number
        text = first[: node.col_offset] + repr(value).encode() + after + blank
        lines[node.lineno - 1 : node.end_lineno] = [text.decode()]
    return "".join(lines)


def lines_of(source: str) -> list[str]:
    """The lines of a text as Python counts them, with their line ends."""
    return _LINE.findall(source)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
