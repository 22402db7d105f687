"""``make demo``: optimise ten built-in problems on this CPU, with no GPU, key or network, and print the winners.

Then two problems once more as a language model wrote them (replies that were recorded, judged anew here), and a Triton
kernel as far as it can be checked on this machine. Everything goes through the command line as a user would type it;
the store is ``demo-output/store.db``.
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
REPLAYED = ("level1/softmax", "level2/masked_softmax")
TRITON = Path(__file__).parents[1] / "examples" / "softmax_triton.py"


def main() -> int:
    """Run the demo; the exit code is the first one that is not 0."""
    store = OUTPUT / "store.db"
    program = Path(sysconfig.get_path("scripts")) / "kernelwright"
    names = [problem.removeprefix("kernelwright/") for problem in DEMO_PROBLEMS]
    fewer = ["--set", f"confirm_max_pairs={MOST_PROCESS_PAIRS}", "--store", str(store)]
    replay = ["--recipe", "cudaforge", "--coder", "replay:cudaforge", "--judge", "replay:cudaforge", "--rounds", "6"]
    for command in (
        ["optimize", *names, "--rounds", str(ROUNDS), *fewer],
        ["optimize", *REPLAYED, *replay, *fewer],
        ["evaluate", str(TRITON), "--problem", "level1/softmax", "--store", str(store)],
    ):
        print(f"$ kernelwright {shlex.join(command)}", file=sys.stderr, flush=True)
        code = subprocess.run([str(program), *command], check=False).returncode
        if code:
            return code
    print(f"\nlook closer: {program} kernels best --store {store}")
    print(f"             {program} runs show last --store {store}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
