"""Compile the kernels of door and keeper to the PTX that the package ships. Needs nvcc; run it after a change.

The text is for compute capability 7.5 and PTX 7.0, so drivers from CUDA 11 on translate it for their device. Its first
line names the sources by their hash; a test compares it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "kernelwright/evaluator/driver/code"
sys.path.insert(0, str(FOLDER.parents[3]))

from kernelwright.evaluator.driver.kernels import MODULES, source_hash  # noqa: E402

_ISA = "7.0"  # of CUDA 11.0


def main() -> int:
    """Compile every module; 3 if there is no compiler."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        print("nvcc is missing: install the CUDA toolkit", file=sys.stderr)
        return 3
    for name in MODULES:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.ptx"
            command = [compiler, "-std=c++17", "-arch=compute_75", "-ptx", "-o", str(out), str(FOLDER / f"{name}.cu")]
            subprocess.run(command, check=True)
            text = re.sub(r"^//.*\n", "", out.read_text(), flags=re.MULTILINE)
        text = re.sub(r"^\.version .*$", f".version {_ISA}", text, flags=re.MULTILINE)
        text = re.sub(r"\n\n+", "\n", text).strip()
        (FOLDER / f"{name}.ptx").write_text(f"// {source_hash(name)}\n{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
