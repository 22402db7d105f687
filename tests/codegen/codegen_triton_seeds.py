"""Triton seeds, run in the corrected interpreter: a script, because that takes a whole process.

Reads problems with their candidates; prints one JSON object: the name of each, and "ok" or what went wrong.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import traceback
from pathlib import Path

from kernelwright.evaluator.worker.triton.interpreter import install

install()

import torch  # noqa: E402
from conftest import Built  # noqa: E402


class Seed(Built):
    """A candidate that is there already, imported from a file: Triton reads the source of its functions."""

    def __init__(self, problem, path):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        self.source, self.module = problem, importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)


def main():
    folder, results = Path(tempfile.mkdtemp()), {}
    for name, case in json.load(sys.stdin).items():
        path = folder / f"{name}.py"
        path.write_text(case["source"])
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                for variant in case["variants"]:
                    Seed(case["problem"], path).check(variant)
            results[name] = "ok"
        except Exception:  # noqa: BLE001 - reported by name to the test that reads it
            results[name] = traceback.format_exc()[-1500:]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
