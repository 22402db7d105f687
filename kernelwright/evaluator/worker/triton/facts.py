"""What the model of expected times needs of Triton candidates, with no device: for those who order them by it.

Worker side, in a process in which Triton was not imported. Kernels are assembled here, so the facts are claims of the
candidates' process: they are for candidates of the code generator, and never for a verdict.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelwright.evaluator.builds.emulation import assembly_command
from kernelwright.evaluator.builds.gpu_resources import Assembled, captured_resources, fits
from kernelwright.evaluator.profile.expected import facts_of
from kernelwright.evaluator.worker.triton.capture import capture
from kernelwright.records import KernelResources

__all__ = ["facts"]

_ASSEMBLER_S = 60.0


def facts(payload: dict[str, Any]) -> dict[str, Any]:
    """The facts of one forward of each candidate.

    Args:
        payload: as for :func:`capture`, with ``sources`` in place of ``source``, and one number in ``architectures``.

    Returns:
        ``candidates``: for each source the fields of its facts, step by step; None if a step is not known.
    """
    from triton.runtime.jit import JITFunction

    run = JITFunction.run
    found = []
    for source in payload["sources"]:
        JITFunction.run = run  # each capture puts its own recorder there
        reply = capture({**payload, "source": source})
        kernels = {launch["launch"]: _assembled(launch) for launch in reply["launches"]}
        known = None if reply["fault"] else facts_of(reply["steps"], kernels)
        found.append(None if known is None else [asdict(step) for step in known])
    JITFunction.run = run
    return {"candidates": found}


def _assembled(launch: dict[str, Any]) -> KernelResources:
    architecture, ptx = f"sm_{launch['architecture']}", launch["ptx"]
    assembled = None
    if ptx and fits(architecture, launch["shared_bytes"]):
        with tempfile.TemporaryDirectory() as folder:
            source, product = Path(folder, "kernel.ptx"), Path(folder, "product")
            source.write_text(ptx)
            command = assembly_command(architecture, str(source), str(product)) or "false"
            done = subprocess.run(
                ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=_ASSEMBLER_S, check=False
            )
            if done.returncode == 0:
                assembled = Assembled(done.stderr, product.read_text())
    return captured_resources(architecture, launch["kernel"], launch["shared_bytes"], launch["knobs"], ptx, assembled)
