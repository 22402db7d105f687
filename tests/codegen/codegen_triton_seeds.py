"""Triton seeds, run in the corrected interpreter: a script, because that takes a whole process.

Reads problems with their candidates; prints one JSON object: the name of each, and "ok" or what went wrong.
"""

from __future__ import annotations

import functools
import json
import sys

from codegen_cases import main
from codegen_triton_cases import imported
from conftest import Built


class Seed(Built):
    """A candidate that is there already."""

    def __init__(self, problem, source):
        self.source, self.module = problem, imported(source)


def check(case):
    for variant in case["variants"]:
        Seed(case["problem"], case["source"]).check(variant)


if __name__ == "__main__":
    main({name: functools.partial(check, case) for name, case in json.load(sys.stdin).items()})
