"""Figures of a candidate's machine code on the CPU: its size, its widest vectors, its traffic with the stack.

They cost milliseconds, while counting instructions takes seconds. So every timed kernel has these figures. The
disassembler runs in the sandbox. Only instructions' names and operands are read from its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernelwright.records import sha256_text
from kernelwright.sandbox import Limits, Sandbox

__all__ = ["CODE_METRICS", "CodeReader", "code_metrics"]

CODE_METRICS = ("code_bytes", "vector_bits", "stack_accesses")

_LIMIT_S = 20.0
_MOST_TEXT = 16 << 20
_REMEMBERED = 256
_COMMAND = "objdump -d -w --section=.text --no-addresses --no-show-raw-insn /in/kernel.so && size -A -d /in/kernel.so"
# Only code and its data remain: no names, no notes on the compiler, no identity of the build.
_PLAIN = (
    'plain=$(mktemp) && strip --strip-all -R .comment -R .note.gnu.build-id -o "$plain" /in/kernel.so '
    '&& sha256sum < "$plain"; made=$?; rm -f "$plain"; exit $made'
)
_SHA256 = re.compile(rb"^([0-9a-f]{64})\b")
_INSTRUCTION = re.compile(r"\t([a-z][a-z0-9.]*)\s*(.*)")
_TEXT_SIZE = re.compile(r"^\.text\s+(\d+)\s", re.MULTILINE)
# %zmm, %ymm and %xmm of AVX-512, AVX and SSE. Scalar arithmetic is done in %xmm as well: its names end in ss or sd.
_WIDTHS = (("%zmm", 512), ("%ymm", 256), ("%xmm", 128))
_SCALAR = re.compile(r"(ss|sd|si|sil|siq|sdl|sdq|ssl|ssq|q|d)$")
# A place in the stack frame: from the stack pointer, or below the frame pointer.
_STACK = re.compile(r"\(%rsp\)|-0x[0-9a-f]+\(%rbp\)")
_MOVE = re.compile(r"v?mov")


def code_metrics(disassembly: str) -> dict[str, float]:
    """Figures of a disassembly as ``objdump -d -w`` and ``size -A -d`` print it, one after the other.

    ``vector_bits``: the widest registers of packed arithmetic or moves, 0 if all code is scalar. ``stack_accesses``:
    moves from and to the stack frame, as of spilled registers.
    """
    bits, stack = 0, 0
    for line in disassembly.splitlines():
        match = _INSTRUCTION.search(line)
        if match is None:
            continue
        name, operands = match[1], match[2]
        bits = max(bits, _width(name, operands))
        stack += bool(_MOVE.match(name) and _STACK.search(operands))
    size = _TEXT_SIZE.search(disassembly)
    return {"code_bytes": float(size[1]) if size else 0.0, "vector_bits": float(bits), "stack_accesses": float(stack)}


def _width(name: str, operands: str) -> int:
    found = next((bits for register, bits in _WIDTHS if register in operands), 0)
    return 0 if found == 128 and _SCALAR.search(name) else found


class CodeReader:
    """Reads the machine code of shared libraries, each once."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._known: dict[str, dict[str, float]] = {}
        self._plain: dict[str, str] = {}

    def metrics(self, products: Iterable[bytes]) -> dict[str, float]:
        """The figures of all products of one candidate: sums of sizes and accesses, and the widest vectors.

        Empty without products, or if one of them cannot be read.

        Raises:
            SandboxError: the sandbox could not be set up.
        """
        found = [self._figures(product) for product in products]
        if not found or not all(found):
            return {}
        return {
            "code_bytes": sum(figures["code_bytes"] for figures in found),
            "vector_bits": max(figures["vector_bits"] for figures in found),
            "stack_accesses": sum(figures["stack_accesses"] for figures in found),
        }

    def fingerprint(self, products: Iterable[bytes]) -> str:
        """A hash of the products' code and data, in order; empty without products, or if one cannot be read.

        Raises:
            SandboxError: the sandbox could not be set up.
        """
        found = [self._plain_hash(product) for product in products]
        return sha256_text("\n".join(found)) if found and all(found) else ""

    def _plain_hash(self, product: bytes) -> str:
        name = sha256_text(product)
        if name not in self._plain:
            if len(self._plain) >= _REMEMBERED:
                self._plain.pop(next(iter(self._plain)))
            limits = Limits(wall_s=_LIMIT_S, output_bytes=_MOST_TEXT, allow_exec=True)
            done = self._sandbox.run(["/bin/sh", "-c", _PLAIN], files={"kernel.so": product}, limits=limits)
            said = _SHA256.match(done.stdout) if done.returncode == 0 and not done.reason else None
            self._plain[name] = "" if said is None else said[1].decode()
        return self._plain[name]

    def _figures(self, product: bytes) -> dict[str, float]:
        name = sha256_text(product)
        if name not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[name] = self._disassemble(product)
        return self._known[name]

    def _disassemble(self, product: bytes) -> dict[str, float]:
        limits = Limits(wall_s=_LIMIT_S, output_bytes=_MOST_TEXT, allow_exec=True)
        done = self._sandbox.run(["/bin/sh", "-c", _COMMAND], files={"kernel.so": product}, limits=limits)
        if done.reason or done.returncode != 0:
            return {}
        return code_metrics(done.stdout.decode(errors="replace"))
