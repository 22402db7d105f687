"""A step of the proof on the stand-in: a process of its own, as on a GPU, with kernels that the stand-in can run."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path

from kernelwright.evaluator import Referee
from kernelwright.proof import run
from stand_in import Builds


def child(name: str, payload: str) -> None:
    """As ``kernelwright.proof.run.child``."""
    with tempfile.TemporaryDirectory() as folder:

        def prepare(referee: Referee) -> None:
            referee.host.builds = Builds(referee.host.builds, Path(folder))  # type: ignore[assignment]

        run.child(name, payload, prepare)


def waits(name: str, payload: str) -> None:
    """Says that it has begun, with a line that is no result. If nothing ends it, it leaves a file."""
    print('{"cut', flush=True)
    print(json.dumps({"begun": True}), flush=True)
    signal.sigtimedwait([], 10.0)
    Path(json.loads(payload)["left"]).touch()
