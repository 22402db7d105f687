"""The oracle on a device: truths of float outputs stay there, in memory of the keeper's, with their error scales."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch

from kernelwright.evaluator.driver.cuda import Driver
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.worker.device_tensors import MappedOnDevice
from kernelwright.evaluator.worker.oracle import Oracle, spec_of


def main(sock: socket.socket) -> None:
    """Serve the referee until it says quit."""
    DeviceOracle(sock).serve()


def _be_deterministic(wanted: bool) -> None:
    """As ``torch.use_deterministic_algorithms``, which imports torch's compiler (1.2 s) as well."""
    torch._C._set_deterministic_algorithms(wanted, warn_only=True)


def _write_out_recurrent_layers() -> None:
    """Let recurrent layers run without cuDNN: it makes one operator of all steps, whose rounding shows in no step."""
    for layer in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):
        layer.forward = torch.backends.cudnn.flags(enabled=False, allow_tf32=False)(layer.forward)


class DeviceOracle(Oracle):
    """An :class:`Oracle` beside a driver on the device that it computes on."""

    driver: Driver

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.there: list[torch.Tensor] = []  # of the last truth: float64, dense

    def do_open_device(self, fds: list[int], library: str) -> None:
        """Open the device through ``library``, on the context that torch uses."""
        assert self.device is not None
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.zeros(1, device=self.device)
            torch.utils.deterministic.fill_uninitialized_memory = False
            _be_deterministic(True)  # or sums by atomics would differ by their order
            _write_out_recurrent_layers()
        self.driver = Driver(library)

    def do_work(self, fds: list[int], size: int, inputs: list[Any]) -> dict[str, Any]:
        """See :meth:`Oracle.do_work`; with the operators that are timed, which are not the deterministic ones."""
        before = torch.are_deterministic_algorithms_enabled()
        _be_deterministic(False)
        try:
            return super().do_work(fds, size, inputs)
        finally:
            _be_deterministic(before)

    def do_truth_there(
        self, fds: list[int], roundoffs: list[float], floors: list[float], **given: Any
    ) -> dict[str, Any]:
        """As ``do_truth``, but what is known of float outputs stays here for ``collect_there``.

        Each such output has ``facts`` (see :func:`facts_of`) and three tensors of float64 there: the reference's own
        output, the exact one, and the error scale. ``roundoffs``, ``floors``: of each output, see :func:`error_scale`.
        """
        reply = self.do_truth(fds, **given)
        self.there, kept, at = [], [], 0
        for item, roundoff, floor in zip(reply["outputs"], roundoffs, floors, strict=True):
            found = self.results[at : at + item["tensors"]]
            at += item["tensors"]
            if item["kind"] != "float":
                kept += found
                continue
            low, exact, deviation, rows = found
            scale = error_scale(deviation, rows, exact, roundoff, floor)
            item["tensors"], item["shape"] = 0, list(exact.shape)
            item["facts"] = facts_of(low.double(), exact, scale)
            self.there += [part.double().contiguous() for part in (low, exact, scale)]
        self.results = kept
        layout, total = wire.place([spec_of(t, f"t{j}") for j, t in enumerate(kept)])
        sizes = sum(tensor.nbytes for tensor in self.there)
        told = {"tensors": [wire.spec_to_json(spec) for spec in layout], "size": total, "there": sizes}
        return {**reply, **told}

    def do_collect_there(self, fds: list[int], size: int) -> None:
        """Write what stayed here into memory of the keeper's, one tensor after another."""
        assert self.device is not None
        mapped, at = MappedOnDevice.adopt(self.driver, fds[0], size, self.device), 0
        os.close(fds[0])
        for tensor in self.there:
            mapped.bytes(at, tensor.nbytes).copy_(tensor.view(-1).view(torch.uint8))
            at += tensor.nbytes
        self.there = []
        self.driver.synchronize()
        mapped.mapping.close()


def error_scale(
    deviation: torch.Tensor, rows: torch.Tensor, exact: torch.Tensor, roundoff: float, floor: float
) -> torch.Tensor:
    """The error scale of a float output, of the shape of ``exact``; see ``accuracy.arrays.scale``.

    Args:
        deviation: of Monte-Carlo arithmetic. rows: of the output in its own dtype, broadcastable.
        roundoff: ``u``. floor: the smallest scale of the dtype.
    """
    least = roundoff * rms(exact) / 16.0
    squares = deviation.double().square() + rows.double().square() + least * least
    return squares.expand(exact.shape).sqrt().clamp_min(floor).contiguous()


def rms(values: torch.Tensor) -> float:
    """Root mean square of the finite elements; 0 if no element is finite."""
    finite = values[values.isfinite()].double()
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return largest * float((finite / largest).square().mean().sqrt()) if largest > 0.0 else 0.0


def facts_of(low: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> dict[str, Any]:
    """Numbers about a truth: median of the scale, rms and largest of the exact output, whether all is finite."""
    if exact.numel() == 0:
        return {"median": 0.0, "rms": 0.0, "largest": 0.0, "finite": True}
    finite = bool(exact.isfinite().all()) and bool(low.isfinite().all())
    largest = float(exact[exact.isfinite()].abs().max()) if bool(exact.isfinite().any()) else 0.0
    return {"median": float(scale.median()), "rms": rms(exact), "largest": largest, "finite": finite}
