"""Runs the steps of the proof: each in a process of its own, with a time limit, its results written as they come."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelwright.config import Settings
from kernelwright.evaluator import Device, Referee
from kernelwright.evaluator.host.device import rehearsal
from kernelwright.files import write_for_user
from kernelwright.proof.rows import failed_rows
from kernelwright.proof.steps import STEPS, Context

__all__ = ["child", "prove"]

_USUAL_MINUTES = 6.0
_LEAST_S = 5.0
_LAST_S = 2.0  # before its limit a step says where it is
_MOST_ERRORS = 6000
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def prove(
    device: Device,
    output: Path,
    *,
    minutes: float = _USUAL_MINUTES,
    steps: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
    payload: dict[str, Any] | None = None,
    entry: str = "kernelwright.proof.run:child",
) -> dict[str, Any]:
    """Run steps on a device. Their results are in ``output`` as soon as there are some.

    Args:
        minutes: that all of them may take.
        steps: their names; none for all that are taken in so many minutes.
        say: is told each step's end.
        payload: what the processes are given; ``entry`` is the function that they run.

    Raises:
        UsageError: ``output`` cannot be written. This is seen before the first step.
    """
    report: dict[str, Any] = {"device": device.name, "driver": device.driver, "minutes": minutes, "steps": {}}
    _write(output, report)
    until = time.monotonic() + 60.0 * minutes
    names = list(steps) or [name for name, step in STEPS.items() if minutes >= step.minutes]
    for at, name in enumerate(names):
        left = until - time.monotonic()
        if left < _LEAST_S:
            report["steps"][name] = {"ended": "no time was left"}
            say(f"{name}: no time was left")
            _write(output, report)
            continue
        weights = [STEPS[other].seconds for other in names[at:]]
        limit = min(left, max(weights[0], left * weights[0] / sum(weights)))
        part: dict[str, Any] = {"results": {}}
        report["steps"][name] = part
        given = {**(payload or {}), "limit_s": limit}
        part["ended"], part["seconds"], part["errors"] = _run(
            name, limit, given, entry, part["results"], output, report
        )
        failed = failed_rows(part["results"])
        lost = f", {len(failed)} failed: {part['results'][failed[0]]['error']}" if failed else ""
        say(f"{name}: {part['ended']} after {part['seconds']:.0f} s, {len(part['results'])} results{lost}")
        _write(output, report)
    return report


def _run(
    name: str,
    limit_s: float,
    payload: dict[str, Any],
    entry: str,
    results: dict[str, Any],
    output: Path,
    report: dict[str, Any],
) -> tuple[str, float, str]:
    """How a step ended, its seconds, and the end of its error stream. Its results are added as it tells them."""
    began = time.monotonic()
    module, _, function = entry.partition(":")
    code = f"import sys; from {module} import {function} as child; child(*sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, name, json.dumps(payload)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    late = threading.Event()

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def give_up() -> None:
        late.set()
        kill()

    timer = threading.Timer(limit_s, give_up)
    timer.start()
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()))
    reader.start()
    try:
        for line in process.stdout:
            with contextlib.suppress(ValueError, TypeError):  # what others print, and a line that was cut off
                results.update(json.loads(line))
                _write(output, report)
        status = process.wait()
    except BaseException:  # Ctrl-C, or a full disk: the process has a session of its own, and would go on
        kill()
        process.wait()
        raise
    finally:
        timer.cancel()
        reader.join()
        process.stdout.close()
        process.stderr.close()
    last = next((line.strip() for line in reversed(errors) if line.strip()), "no reason given")
    ended = "done" if status == 0 else f"failed: {last[:400]}"
    if late.is_set():
        ended = f"cut off after {limit_s:.0f} s"
    return ended, time.monotonic() - began, "".join(errors)[-_MOST_ERRORS:]


def _write(output: Path, report: dict[str, Any]) -> None:
    write_for_user(output, json.dumps(report, indent=1) + "\n", what="the results to ")


def child(name: str, payload: str, prepare: Callable[[Referee], None] = lambda referee: None) -> None:
    """Run one step in this process, and print its results as lines of JSON.

    ``payload``: ``settings``, ``limit_s``, and for a rehearsal ``library`` and ``images`` (paths) of a stand-in.
    """
    given = json.loads(payload)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)  # else it would keep the device if the proof is killed
    if given.get("limit_s", 0.0) > 2 * _LAST_S:
        faulthandler.dump_traceback_later(given["limit_s"] - _LAST_S)
    settings = Settings.load(flags={"measurement": {"looks": [12]}, **given.get("settings", {})})
    if "library" in given:
        device = rehearsal(given["library"], [Path(path).read_bytes() for path in given["images"]])
    else:
        from kernelwright.evaluator import find_device

        found = find_device()
        if found is None:
            raise SystemExit("no GPU: nvidia-smi shows none that may be used here")
        device = found
    context = Context(settings, device, small="library" in given, prepare=prepare)

    def tell(key: str, value: Any) -> None:
        print(json.dumps({key: value}), flush=True)

    STEPS[name].run(context, tell)
