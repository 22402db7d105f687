"""``make demo``: faster kernels for this CPU in a few minutes, with no GPU, key or network.

Two built-in problems by the code generator, one as a language model wrote it (replies that were recorded, judged anew
here), and a Triton kernel as far as it can be checked on this machine. Everything goes through the command line as a
user would type it; the store is ``demo-output/store.db``. ``make demo-full`` does more of the same in a quarter of an
hour: ten problems, two recorded ones, and more rounds for each.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import sysconfig
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from kernelwright.datasets._suites import DEMO_PROBLEMS
from kernelwright.store import Store

STORE = Path("demo-output") / "store.db"
TRITON = Path(__file__).parents[1] / "examples" / "softmax_triton.py"
REPLAY = ("--recipe", "cudaforge", "--coder", "replay:cudaforge", "--judge", "replay:cudaforge")
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 3.0  # for a command that was asked to end; one that is asked again drops what it has in hand
LAST_PATIENCE = 10  # times as much before it is killed
MOST_ASKED = 2
SIGNALLED = 128
LOOK_S = 0.5  # between two looks at the make that started this


class Plan(NamedTuple):
    """What is optimised: problems by the code generator, and recorded ones, each in so many rounds."""

    problems: tuple[str, ...]
    rounds: int
    replayed: tuple[str, ...]
    replies: int


# On a noisy machine the quick method makes the intervals wider instead of the demo longer.
QUICK = ("--set", "measurement=quick")
SHORT = Plan(
    problems=("level1/max_pool2d", "level1/rms_norm"),
    rounds=2,
    replayed=("level2/masked_softmax",),
    replies=3,
)
FULL = Plan(
    problems=tuple(name.removeprefix("kernelwright/") for name in DEMO_PROBLEMS),
    rounds=5,
    replayed=("level1/softmax", "level2/masked_softmax"),
    replies=6,
)


def commands(plan: Plan) -> list[list[str]]:
    """The arguments of each ``kernelwright`` that the demo types."""
    store = ["--store", str(STORE)]
    return [
        ["optimize", *plan.problems, "--rounds", str(plan.rounds), *QUICK, *store],
        ["optimize", *plan.replayed, *REPLAY, "--rounds", str(plan.replies), *QUICK, *store],
        ["evaluate", str(TRITON), "--problem", "level1/softmax", *store],
    ]


class Maker:
    """The make that started this process, if one did.

    When make alone is told to end, and not the whole group of its terminal, it waits for what it started, and tells it
    of SIGTERM only; when it is killed, it can tell nobody. What it was told shows in the signals that it handles.
    """

    def __init__(self) -> None:
        self._pid = os.getppid() if "MAKELEVEL" in os.environ else 0
        self._handled = self._handles()

    def ended(self) -> bool:
        """Whether it is gone, or was told to end."""
        return bool(self._pid) and (os.getppid() != self._pid or bool(self._handled & ~self._handles()))

    def _handles(self) -> int:
        """The set of signals that it has handlers for; none where that cannot be known."""
        try:
            status = Path(f"/proc/{self._pid}/status").read_text()
        except OSError:
            return 0
        return next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")), 0)


def run_command(words: Sequence[str], *, patience_s: float = PATIENCE_S, maker: Maker | None = None) -> int:
    """Run a program to its end and return its exit code, which is 128 and a signal's number where one ended it.

    SIGINT, SIGTERM and SIGHUP, unless they are ignored here, end the program before this returns. It gets SIGINT, once
    more after ``patience_s``, and is killed with its process group where that is no help; sandboxes end with it. Where
    the make that started this ends, that counts as SIGTERM.
    """
    maker = maker or Maker()
    ends = [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]
    # They wait in the kernel while they are blocked, so that none is lost before the program is started.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*ends, signal.SIGCHLD))
    try:
        # Its own session: a terminal's Ctrl-C reaches it through here alone, and so once.
        child = os.posix_spawnp(words[0], list(words), os.environ, setsid=True, setsigmask=(), setsigdef=ENDS)
        code, came = _wait(child, {*ends, signal.SIGCHLD}, patience_s, maker)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 128 + came if came else code if code >= 0 else 128 - code


def _wait(child: int, signals: set[signal.Signals], patience_s: float, maker: Maker) -> tuple[int, int]:
    """The exit code of a child, negative where a signal ended it, and the first signal that came here, or 0."""
    first = asked = 0
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        limit_s = LOOK_S if not asked else patience_s if asked == 1 else LAST_PATIENCE * patience_s
        came = signal.sigtimedwait(signals, limit_s)
        if came is None and not asked and not maker.ended():
            continue
        if came is None or came.si_signo != signal.SIGCHLD:
            asked += 1
            first = first or (came.si_signo if came else signal.SIGTERM)
            if asked <= MOST_ASKED:
                os.kill(child, signal.SIGINT)
            else:
                os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(ended[1]), first


def first_win(since: datetime) -> str:
    """Says which kernel was the first that a confirmation called faster than eager, and when; empty where none was."""
    with Store.open(STORE, readonly=True) as store:
        found = store.evaluations(confirmed=True, passed=True)
    for entry in found:
        came, verdict = datetime.fromisoformat(entry.created_at), entry.evaluation.verdict
        speedup = verdict.speedup("eager")
        if came >= since and speedup is not None and speedup.faster:
            ratio = f"{speedup.median:.2f}x eager [{speedup.low:.2f}, {speedup.high:.2f}]"
            return f"first confirmed speedup after {(came - since).total_seconds():.0f} s: {verdict.problem}, {ratio}"
    return ""


def main() -> int:
    """Run the demo; the exit code is the first one that is not 0, and that of a signal which ended it."""
    parser = argparse.ArgumentParser(description="Optimise problems on this CPU, and show what came of it.")
    parser.add_argument("--full", action="store_true", help="ten problems and two recorded ones: a quarter of an hour")
    program, since, code, maker = Path(sysconfig.get_path("scripts")) / "kernelwright", datetime.now(UTC), 0, Maker()
    for command in commands(FULL if parser.parse_args().full else SHORT):
        print(f"$ kernelwright {shlex.join(command)}", file=sys.stderr, flush=True)
        ended = run_command([str(program), *command], maker=maker)
        if ended > SIGNALLED:
            print("the demo was ended, and all that it had started", file=sys.stderr)
            return ended
        code = code or ended
    print(f"\n{first_win(since) or 'no speedup was confirmed'}")
    print(f"the demo took {(datetime.now(UTC) - since).total_seconds():.0f} s\n")
    shown = os.path.relpath(program)
    print(f"the leaderboard:  {shown} serve --store {STORE}   (then open http://127.0.0.1:8765)")
    print(f"the kernels:      {shown} kernels best --store {STORE}")
    print(f"the latest run:   {shown} runs show last --store {STORE}")
    return code


if __name__ == "__main__":
    sys.exit(main())
