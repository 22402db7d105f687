"""Runs the tests that need a GPU, or those given, with pytest's options; without a GPU, says so and ends with 3."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from kernelwright.evaluator import find_device

ROOT = Path(__file__).resolve().parents[1]
NO_DEVICE = 3
_ASK_TORCH = "import sys, torch; sys.exit(not torch.cuda.is_available())"


def main() -> int:
    """The exit status of the tests."""
    device = find_device()
    if device is None:
        print("test-gpu needs an NVIDIA GPU: nvidia-smi shows none that may be used here", file=sys.stderr)
        return NO_DEVICE
    missing = [name for name in ("torch", "triton", "pytest") if importlib.util.find_spec(name) is None]
    if missing or subprocess.run([sys.executable, "-c", _ASK_TORCH], check=False).returncode:
        print(
            f"test-gpu needs torch built for CUDA, triton and pytest in {sys.executable}: install them there, or name "
            "another interpreter that has them: make test-gpu GPU_PYTHON=/path/to/python",
            file=sys.stderr,
        )
        return NO_DEVICE
    print(f"on {device.name}, driver {device.driver}", file=sys.stderr)
    given = sys.argv[1:]
    chosen = given if any("tests/gpu" in word for word in given) else ["tests/gpu", *given]
    command = [sys.executable, "-m", "pytest", "-rs", "-m", "gpu", *chosen]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
