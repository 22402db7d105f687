"""MultiKernelBench's checkout: ``reference/<category>/<name>.py`` in KernelBench's contract.

Files with ``get_input_groups`` in place of ``get_inputs`` read their cases from a file beside them, one case of JSON a
line: each case is a variant here, and the text of that file travels with the problem.

MultiKernelBench: Z. Wen et al., "MultiKernelBench: a multi-platform benchmark for kernel generation", arXiv 2507.17773.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kernelwright.datasets.loaders._base import Entry, literal, parse_json, read_text, unusable
from kernelwright.datasets.loaders._levels import numbered

_LEVELS = {"arch": 3, "fuse": 2}  # KernelBench's third and second level; all other categories are single operators
_OWN_LEVEL = re.compile(r"npukernelbench_level(\d+)$")
_CASES = re.compile(r"""["']([^"'/\\]+\.jsonl?)["']""")
_MOST_CASES = 512

_GROUPS = """

# ---- what follows is kernelwright's: one case of the file of cases is a variant

CASE = 0
CASES = {cases}


def open(path, *mode, **how):
    import io

    return io.StringIO(CASES[CASE])


def get_inputs():
    return get_input_groups()[0]


PROBLEM = {problem}
"""


class MultiKernelBench:
    """The layout of its repository, or of the folder ``reference`` alone."""

    name = "MultiKernelBench"

    def recognises(self, folder: Path) -> bool:
        """Whether there are its categories."""
        home = _home(folder)
        return all((home / category).is_dir() for category in ("activation", "fuse", "matmul"))

    def entries(self, suite: str, folder: Path) -> Iterator[Entry]:
        """Every Python file of a category."""
        for category in sorted(_home(folder).iterdir()):
            if not category.is_dir() or category.name.startswith((".", "_")):
                continue
            own = _OWN_LEVEL.match(category.name)
            level = int(own[1]) if own else _LEVELS.get(category.name, 1)
            for path in sorted(category.glob("*.py")):
                if not path.name.startswith("_"):
                    number, name = numbered(path.stem)
                    yield Entry(suite, category.name, level, number, name, path, _written)


def _home(folder: Path) -> Path:
    return folder / "reference" if (folder / "reference").is_dir() else folder


def _written(path: Path) -> str:
    source = read_text(path)
    category = path.parent.name
    if "def get_input_groups(" not in source:
        return f"{source}\n\nPROBLEM = {literal({'category': category})}\n"
    cases = _cases(path, source)
    variants = [{"CASE": number} for number in range(len(cases))]
    problem = {"category": category, "variants": {"cpu": variants, "gpu": variants}}
    return source + _GROUPS.format(cases=literal(cases), problem=literal(problem))


def _cases(path: Path, source: str) -> list[str]:
    """The lines of the file of cases that a problem names; where it names none, of that with its own name.

    Raises:
        InvalidReferenceError: there is no such file, or it has no case, or too many.
    """
    named = dict.fromkeys(_CASES.findall(source)) or {f"{path.stem}.json": None}
    files = [path.parent / name for name in named if (path.parent / name).is_file()]
    if len(files) != 1:
        raise unusable(path, f"get_input_groups reads its cases from {' or '.join(named)}: {len(files)} lie beside it")
    lines = [(number, line) for number, line in enumerate(read_text(files[0]).splitlines(), 1) if line.strip()]
    if not 1 <= len(lines) <= _MOST_CASES:
        raise unusable(files[0], f"{len(lines)} cases where 1 to {_MOST_CASES} are expected")
    for number, line in lines:
        parse_json(line, files[0], number)
    return [line for _, line in lines]
