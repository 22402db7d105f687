"""``make demo``: optimise ten built-in problems on this CPU, with no GPU, key or network, and print the winners.

Everything goes through the command line as a user would type it; the store is ``demo-output/store.db``.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from kernelwright.datasets import DEMO_PROBLEMS

OUTPUT = Path("demo-output")
ROUNDS = 5
MOST_PROCESS_PAIRS = 8  # on a noisy machine the intervals get wider instead of the demo longer


def main() -> int:
    """Run the demo; the exit code is the command line's."""
    store = OUTPUT / "store.db"
    program = Path(sysconfig.get_path("scripts")) / "kernelwright"
    names = [problem.removeprefix("kernelwright/") for problem in DEMO_PROBLEMS]
    options = ["--rounds", str(ROUNDS), "--set", f"confirm_max_pairs={MOST_PROCESS_PAIRS}", "--store", str(store)]
    command = ["optimize", *names, *options]
    print(f"$ kernelwright {shlex.join(command)}", file=sys.stderr, flush=True)
    code = subprocess.run([str(program), *command], check=False).returncode
    if code == 0:
        print(f"\nlook closer: {program} kernels best --store {store}")
        print(f"             {program} runs show last --store {store}")
    return code


if __name__ == "__main__":
    sys.exit(main())
