"""Triton candidates of the generator, compiled for a GPU without one: a script, because capture takes a whole process.

Prints one JSON object: for each problem the kernels of one forward at its size for a GPU, with what the compiler said.
"""

from __future__ import annotations

import json
import sys

from triton.runtime.jit import JITFunction

from kernelwright.evaluator.worker.triton.capture import capture

RUN = JITFunction.run


def main():
    found = {}
    for name, payload in json.load(sys.stdin).items():
        JITFunction.run = RUN  # each capture puts its own recorder here
        reply = capture(payload)
        kept = [
            {key: launch[key] for key in ("kernel", "architecture", "knobs", "shared_bytes", "error", "ptx")}
            for launch in reply["launches"]
        ]
        found[name] = {"launches": kept, "fault": reply["fault"]}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
