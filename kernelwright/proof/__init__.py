"""What a GPU says of the referee: steps with a time limit each, in order of worth, each in a process of its own.

``kernelwright doctor --prove-gpu`` and ``make gpu-proof`` run it. It works offline. A step that fails or hangs stops no
other one.
"""

from kernelwright.proof.rows import failed_rows
from kernelwright.proof.run import prove
from kernelwright.proof.steps import STEPS

__all__ = ["STEPS", "failed_rows", "prove"]
