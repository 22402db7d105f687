"""Triton candidates with loops, run in the corrected interpreter: a script, because that takes a whole process.

Reads problems with their variants; prints one JSON object: for each what went wrong, and the launches of the loop.
"""

from __future__ import annotations

import json
import sys
import traceback

from kernelwright.evaluator.worker.triton.interpreter import install

install()

from codegen_triton_cases import Candidate  # noqa: E402


def main():
    found = {}
    for name, case in json.load(sys.stdin).items():
        found[name] = {"fault": "", "launches": 0}
        try:
            built = Candidate(case["source"], {}, case["variants"])
            loop = next(step for step in built.generated.report if step["kind"] == "repeat")
            found[name]["launches"] = loop["launches"]
            for variant in case["variants"]:
                built.check(variant)
        except Exception:  # noqa: BLE001 - reported by name to the test that reads it
            found[name]["fault"] = traceback.format_exc()[-1500:]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
