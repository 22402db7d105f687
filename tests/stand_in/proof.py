"""A step of the proof on the stand-in: a process of its own, as on a GPU, with kernels that the stand-in can run."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path
from typing import Any

from kernelwright.evaluator import ProblemSession, Referee
from kernelwright.proof import run
from stand_in import Builds


def child(name: str, payload: str) -> None:
    """As ``kernelwright.proof.run.child``."""
    with tempfile.TemporaryDirectory() as folder:

        def prepare(referee: Referee) -> None:
            referee.host.builds = Builds(referee.host.builds, Path(folder))  # type: ignore[assignment]

        run.child(name, payload, prepare)


def fails_once(name: str, payload: str) -> None:
    """As :func:`child`; the first judgement meets an error that is no error of kernelwright's."""
    judge = ProblemSession.judge

    def first(session: ProblemSession, *given: Any, **named: Any) -> Any:
        ProblemSession.judge = judge  # type: ignore[method-assign]
        raise ZeroDivisionError("the first of all")

    ProblemSession.judge = first  # type: ignore[method-assign,assignment]
    child(name, payload)


def waits(name: str, payload: str) -> None:
    """Says that it has begun, with a line that is no result. If nothing ends it, it leaves a file."""
    print('{"cut', flush=True)
    print(json.dumps({"begun": True}), flush=True)
    signal.sigtimedwait([], 10.0)
    Path(json.loads(payload)["left"]).touch()
