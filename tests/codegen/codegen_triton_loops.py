"""Triton candidates with loops, run in the corrected interpreter: a script, because that takes a whole process.

Reads problems with their variants; prints one JSON object: for each the launches of the loop, or what went wrong.
"""

from __future__ import annotations

import functools
import json
import sys

from codegen_cases import main
from codegen_triton_cases import Candidate


def check(case):
    built = Candidate(case["source"], {}, case["variants"])
    for variant in case["variants"]:
        built.check(variant)
    return next(step["launches"] for step in built.generated.report if step["kind"] == "repeat")


if __name__ == "__main__":
    main({name: functools.partial(check, case) for name, case in json.load(sys.stdin).items()})
