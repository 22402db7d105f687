"""Fresh draws of a problem's own ``get_inputs``, for slots whose inputs only the problem can make.

Its worker holds the problem's code and no expected outputs. It is frozen whenever it is not drawing.
"""

from __future__ import annotations

import secrets

import numpy as np

from kernelwright.evaluator.accuracy.trials import CANARY, Variant
from kernelwright.evaluator.host.client import Client
from kernelwright.sandbox import SharedMemory

_TIMEOUT_S = 120.0
_CHUNK_BYTES = 64 << 20
_MOST_DRAWS = 512  # seeds that fit into one message


class Drawer:
    """Draws inputs of one variant. Owns ``client``, an oracle's worker that has loaded the problem."""

    def __init__(self, client: Client, variant: Variant) -> None:
        self._client = client
        self._variant = variant
        client.request("open_variant", timeout_s=_TIMEOUT_S, variant=dict(variant.constants))
        self._frozen = False

    def draw(self, count: int) -> np.ndarray:
        """(count, slot bytes) of fresh inputs; hidden inputs and margins hold canaries.

        Raises:
            WorkerFailed: ``get_inputs`` raises, or changes its shapes.
        """
        size = self._variant.slot_bytes
        drawn = np.empty((count, size), dtype=np.uint8)
        step = max(min(_CHUNK_BYTES // size, _MOST_DRAWS), 1)
        if self._frozen:
            self._client.worker.thaw()
        for start in range(0, count, step):
            part = drawn[start : start + step]
            with SharedMemory.create(part.size, "draws") as memory:
                arena = np.frombuffer(memory.view, dtype=np.uint8).reshape(part.shape)
                arena[:] = CANARY
                self._client.request(
                    "export_inputs",
                    timeout_s=_TIMEOUT_S,
                    fds=[memory.fd],
                    size=size,
                    inputs=self._variant.inputs_json(),
                    seeds=[secrets.randbits(31) for _ in part],
                )
                part[:] = arena
                del arena
        self._client.worker.freeze()
        self._frozen = True
        return drawn

    def close(self) -> None:
        """End the worker."""
        self._client.close()
