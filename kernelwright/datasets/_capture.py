"""Capture, the user's side: any ``nn.Module`` becomes a problem file.

The user trusts this module, and it needs the user's own import path. So it runs in a plain child process (a live
module in the process that holds it), never in the referee and never in the sandbox.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.datasets._contract import parse_problem
from kernelwright.errors import MachineError, UsageError
from kernelwright.files import write_for_user
from kernelwright.records import Problem

if TYPE_CHECKING:
    import torch

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_CHILD = """
import sys
result, workdir, package_root = sys.argv[1:]
sys.path.insert(0, workdir)
sys.path.append(package_root)
from kernelwright.datasets._capture_worker import main
main(result)
"""


def problem_from_module(
    model: torch.nn.Module, example_inputs: Sequence[Any] | torch.Tensor, name: str
) -> tuple[str, dict[str, str]]:
    """Write a problem file for a live module, in this process. Imports torch.

    Args:
        model: any module that ``torch.export`` accepts, in the desired mode (train or eval).
        example_inputs: positional arguments of its ``forward``: tensors, or containers of tensors.
        name: the problem's title.

    Returns:
        The source of the file, and a map from each state-dict name of its ``Model`` to the module's name.

    Raises:
        UsageError: the module fails on these inputs, cannot be exported (control flow on data), or holds more exact
            data than fits into a file.
    """
    from kernelwright.datasets._capture_worker import problem_from_module as capture

    return capture(model, example_inputs, name)


def capture_module(
    target: str,
    inputs: str | None,
    out: Path,
    *,
    name: str | None = None,
    workdir: Path | None = None,
    timeout_s: float = 600.0,
) -> Problem:
    """Write a problem file for the module that a factory returns, and return the problem.

    Args:
        target: ``package.module:factory`` or ``path/file.py:factory``. The factory takes no arguments and returns
            ``(module, example inputs)``, or only the module if ``inputs`` is given.
        inputs: shapes and inclusive ranges, for example ``float32[8,64],int64[8]:0..100``; None: the factory's own.
        out: the file to write; it is replaced atomically.
        name: the problem's title; default: the file's stem.
        workdir: the folder from which modules are imported; default: the current one.
        timeout_s: limit for import, export and verification, in seconds.

    Raises:
        UsageError: the target cannot be imported or captured; ``data["traceback"]`` has the child's traceback.
        MachineError: the child process died or exceeded its time limit.
    """
    out = Path(out)
    if not out.parent.is_dir():
        raise UsageError(f"no such folder: {out.parent}", hint="create it, or write to another place")
    folder = Path(workdir or Path.cwd()).resolve()
    payload = {"target": target, "inputs": inputs, "name": name or out.stem}
    reply = _run_child(payload, folder, timeout_s)
    if "error" in reply:
        raise UsageError(reply["error"], hint=reply["hint"], target=target, traceback=reply["traceback"])
    problem = parse_problem(
        reply["source"], id=f"file/{out.stem}", suite="file", level=0, name=out.stem, path=str(out.resolve())
    )
    write_for_user(out, problem.source, hint="choose a writable place")
    return problem


def _run_child(payload: dict[str, Any], workdir: Path, timeout_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="kernelwright-capture-") as scratch:
        result = Path(scratch) / "reply.json"
        command = [sys.executable, "-c", _CHILD, str(result), str(workdir), str(_PACKAGE_ROOT)]
        try:
            child = subprocess.run(
                command, input=json.dumps(payload), text=True, capture_output=True, cwd=workdir, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            hint = "give smaller example inputs, or a longer limit"
            raise MachineError(f"capturing {payload['target']} took more than {timeout_s:g} s", hint=hint) from None
        if not result.exists():
            tail = child.stderr.strip().splitlines()[-1:] or [""]
            raise MachineError(
                f"capturing {payload['target']} ended without a result (exit code {child.returncode}): {tail[0][:300]}",
                hint="import the module by itself in this environment to see why",
                stderr=child.stderr[-4000:],
            )
        reply: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return reply
