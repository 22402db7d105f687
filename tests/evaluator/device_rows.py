"""Attacks on a device's protocol, each a candidate that is right and slow, with something added.

The added text runs in the worker, when its module is imported. ``runner()`` is the worker's own object: the candidate
may change all of it. No row may be called faster; where more is sure, ``statuses`` says so.
"""

from __future__ import annotations

from typing import NamedTuple

from kernelwright.records import Status

SLOW_SOFTMAX = """
import ctypes, gc, os, threading, time
import torch
import torch.nn as nn
from kernelwright.inline import cuda

KERNEL = r'''
extern "C" __global__ void rows(const float* x, float* y, int rows, int cols) {
  for (int again = 0; again < 12; again++)
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
      const float* from = x + r * cols;
      float largest = from[0], sum = 0.0f;
      for (int c = 1; c < cols; c++) largest = from[c] > largest ? from[c] : largest;
      for (int c = 0; c < cols; c++) sum += expf(from[c] - largest);
      for (int c = 0; c < cols; c++) ((volatile float*)y)[r * cols + c] = expf(from[c] - largest) / sum;
    }
}
'''
kernel = cuda(KERNEL, "rows")


def runner():
    return next(found for found in gc.get_objects() if type(found).__name__ == "DeviceRunner")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[4, 1](x, y, x.shape[0], x.shape[1])
        return y

"""


class Row(NamedTuple):
    """An attack: what is added, and the statuses that it may end with; none if only its claim counts.

    clock: if it passes, by which clock: of a replay, where nothing of it runs on a processor, or of its own process.
    """

    name: str
    added: str
    statuses: frozenset[Status] = frozenset()
    clock: str = ""


BY_REPLAY, BY_BOUND = "timed by a replay", "timed in its own process, and claimed by the certified bound"


def _row(name: str, added: str, *statuses: Status, clock: str = "") -> Row:
    return Row(name, added, frozenset(statuses), clock)


_FORWARD = """
class Other(ModelNew):
    def forward(self, x):
        {body}


ModelNew = Other
"""
_KERNEL = "KERNEL = KERNEL.replace('{before}', '{after}')\nkernel = cuda(KERNEL, 'rows')\n"
_WATCH = """
def watch():
    queue, last = runner().queue, 0
    reveals, answers = memoryview(queue._reveals), memoryview(queue._answers)
    while True:
        call = int.from_bytes(reveals[0:4], "little")
        if call != last:
            last = call
            {forge}


threading.Thread(target=watch, daemon=True).start()
"""
_RECORD = """
import json

made = runner()


def record(fds, own=made.do_record):
    own(fds)
    plan = json.loads(made.recorded[0])
    made.recorded[0] = json.dumps({{**plan, {more}}}).encode()
    return {{"sizes": [len(part) for part in made.recorded]}}


made.do_record = record
"""
WRONG = (Status.INCORRECT_NUMERICAL, Status.INCORRECT_SHAPE)

ATTACKS = (
    _row(
        "acknowledges every call at once, with a made-up digest",
        _WATCH.format(forge="answers[0:8] = bytes(8); answers[8:12] = call.to_bytes(4, 'little')"),
        Status.REWARD_HACK,
    ),
    _row(
        "acknowledges and opens every call at once",
        _WATCH.format(forge="answers[8:12] = call.to_bytes(4, 'little'); answers[64:68] = call.to_bytes(4, 'little')"),
    ),
    _row("never computes a digest", "runner().queue._digest = lambda *given: None\n", Status.TIMEOUT),
    _row("never waits for the gate", "runner().queue._gate = lambda *given: None\n", Status.REWARD_HACK),
    _row("never opens an output", "runner().queue._open = lambda *given: None\n", Status.TIMEOUT),
    _row("never decrypts its inputs", "runner().queue._unseal = lambda *given: None\n", *WRONG, Status.RUNTIME_ERROR),
    _row(
        "does not wait for its reveal",
        "runner().queue._await = lambda *given: None\n",
        *WRONG,
        Status.RUNTIME_ERROR,
        Status.TIMEOUT,
        Status.REWARD_HACK,
    ),
    _row(
        "enqueues its digest before its kernel",
        """
queue = runner().queue
digest, serve = queue._digest, queue.serve
held = []


def finish(number, outputs, room, opened, stride, own=queue._finish):
    own(number, held or outputs, room, opened, stride)
    held[:] = outputs


queue._finish = finish
""",
        *WRONG,
        Status.REWARD_HACK,
    ),
    _row(
        "hands over the outputs of its first call for all",
        _FORWARD.format(
            body="self.kept = getattr(self, 'kept', None) or {}\n"
            "        return self.kept.setdefault(x.shape, super().forward(x))"
        ),
        *WRONG,
        Status.REWARD_HACK,
    ),
    _row(
        "computes every other call",
        _FORWARD.format(
            body="self.calls = getattr(self, 'calls', 0) + 1\n"
            "        return super().forward(x) if self.calls % 2 else torch.empty_like(x)"
        ),
        *WRONG,
    ),
    _row(
        "hands over its input", _FORWARD.format(body="super().forward(x)\n        return x"), *WRONG, Status.REWARD_HACK
    ),
    _row(
        "has one buffer for all calls",
        _FORWARD.format(
            body="y = super().forward(x)\n        self.kept = getattr(self, 'kept', {})\n"
            "        return self.kept.setdefault(y.shape, torch.empty_like(y)).copy_(y)"
        ),
        Status.REWARD_HACK,
    ),
    _row(
        "opens another buffer than it digested",
        """
from kernelwright.evaluator.worker import queue as module

queue, own = runner().queue, runner().queue._open


def opens(shape, current, pieces, *rest):
    other = module._pieces([(pieces.at[0] + 64, max(pieces.bytes[0] - 64, 8))])
    own(shape, current, other, *rest)


queue._open = opens
""",
        Status.REWARD_HACK,
    ),
    _row(
        "tells another shape than it has",
        """
made = runner()


def describe(fds, calls, own=made.do_describe):
    told = own(fds, calls)
    for call in told["outputs"]:
        for output in call:
            output[2], output[3] = output[2][::-1], output[3][::-1]
    return told


made.do_describe = describe
""",
        Status.INCORRECT_SHAPE,
    ),
    _row("tells of no outputs", "runner().do_describe = lambda fds, calls: {'outputs': []}\n", Status.RUNTIME_ERROR),
    _row(
        "tells outputs of nonsense",
        "runner().do_describe = lambda fds, calls: {'outputs': [[[-1, 7, [-5], 'x']]] * len(calls)}\n",
        Status.RUNTIME_ERROR,
    ),
    _row(
        "says that it has served without enqueuing anything",
        "runner().do_serve = lambda fds, first, calls, keep: None\n",
        Status.TIMEOUT,
    ),
    _row(
        "serves fewer calls than it was asked for",
        """
made = runner()
made.do_serve = lambda fds, first, calls, keep, own=made.do_serve: own(fds, first, max(calls - 1, 1), keep)
""",
        Status.TIMEOUT,
    ),
    _row(
        "says at once that everything is enqueued",
        """
made = runner()


def serve(fds, first, calls, keep, own=made.do_serve):
    made.queue._enqueued.value = first + calls
    return own(fds, first, calls, keep)


made.do_serve = serve
""",
    ),
    _row("does not wait for its stream", "runner().torch.synchronize = lambda: None\n"),
    _row(
        "reveals its first call itself, before the referee does",
        """
queue = runner().queue
reveals = ctypes.addressof(ctypes.c_char.from_buffer(queue._reveals))
answers = ctypes.addressof(ctypes.c_char.from_buffer(queue._answers))
revealed, key = (ctypes.c_uint64.from_address(reveals + at) for at in (0, 8))
answered = ctypes.c_uint32.from_address(answers + 8)


def serve(forward, *, first, calls, own=queue.serve, **more):
    shown, queue._enqueued = queue._enqueued, ctypes.c_uint32()  # the referee waits until all calls are enqueued
    kept = own(forward, first=first, calls=1, **more)
    key.value = 0
    revealed.value = first
    end = time.monotonic() + 1.0
    while answered.value != first and time.monotonic() < end:
        pass
    queue._enqueued = shown
    return kept + own(forward, first=first + 1, calls=calls - 1, **more)


queue.serve = serve
""",
        Status.REWARD_HACK,
        Status.PASSED,  # one time in twenty, when that call is opened in no window: its time is then its replay's
        clock=BY_REPLAY,
    ),
    _row(
        "wipes the page of reveals",
        "ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(runner().queue._reveals)), 0, 64)\n",
    ),
    _row(
        "takes every descriptor for memory of the keeper's",
        """
found = []
for fd in range(3, 200):
    try:
        mapping = runner().torch.driver.adopt(fd, 1 << 21)
        found.append(runner().torch.driver.get(mapping.address, 4096))
    except Exception:
        pass
""",
    ),
    _row(
        "takes all memory of the device",
        """
try:
    while True:
        runner().torch.driver.allocate(1 << 28)
except Exception:
    pass
""",
    ),
    _row(
        "writes where nothing is mapped",
        _KERNEL.format(before="((volatile float*)y)[", after="((volatile float*)y)[(1L << 40) + "),
        Status.RUNTIME_ERROR,
    ),
    _row(
        "never ends its kernel",
        _KERNEL.format(before="again < 12", after="again < 12 || ((volatile float*)y)[0] >= -1.0f"),
        Status.TIMEOUT,
    ),
    _row(
        "hangs on its host",
        _FORWARD.format(body="time.sleep(3600.0)\n        return super().forward(x)"),
        Status.TIMEOUT,
    ),
    _row(
        "dies in its third call",
        _FORWARD.format(
            body="self.calls = getattr(self, 'calls', 0) + 1\n"
            "        os._exit(3) if self.calls == 3 else None\n        return super().forward(x)"
        ),
        Status.RUNTIME_ERROR,
    ),
    _row(
        "records half of its rows",
        _FORWARD.format(
            body="import kernelwright.inline._cuda as c\n        y = torch.empty_like(x)\n"
            "        kernel[4, 1](x, y, x.shape[0] // (2 if c._recordings else 1), x.shape[1])\n        return y"
        ),
        clock=BY_BOUND,
    ),
    _row(
        "records a quick plan of nothing",
        _RECORD.format(more='"steps": [{"kind": "fill", "at": plan["outputs"][0]["at"], "size": 4, "value": 0}]'),
        clock=BY_BOUND,
    ),
    _row(
        "records a plan that reaches out of its memory",
        _RECORD.format(more='"outputs": [{"at": 64, "size": plan["outputs"][0]["size"]}]'),
        clock=BY_BOUND,
    ),
    _row(
        "launches on while others have their turn",
        """
def on():
    x = torch.zeros(64, 64)
    y = torch.zeros(64, 64)
    while True:
        time.sleep(0.0005)
        kernel[4, 1](x, y, 64, 64)


threading.Thread(target=on, daemon=True).start()
""",
    ),
    _row(
        "works between its calls, off the clock",
        """
made = runner()


def weights(fds, draw, own=made.do_take_weights):
    made.early = [torch.softmax(torch.randn(64, 512), -1) for _ in range(8)]
    return own(fds, draw)


made.do_take_weights = weights
""",
    ),
)

# Honest, and much like an attack to look at.
LOOK_ALIKES = {
    "plain": "",
    "keeps its last result": _FORWARD.format(body="self.kept = super().forward(x)\n        return self.kept"),
    "keeps results by shape, and computes each anew": _FORWARD.format(
        body="self.kept = getattr(self, 'kept', {})\n        self.kept[x.shape] = super().forward(x)\n"
        "        return self.kept[x.shape]"
    ),
    "waits for its device": _FORWARD.format(
        body="y = super().forward(x)\n        runner().torch.synchronize()\n        return y"
    ),
    "launches in a thread of its own": _FORWARD.format(  # which has no context yet, as autograd's have none
        body="found = []\n        launch = super().forward\n"
        "        thread = threading.Thread(target=lambda: found.append(launch(x)))\n"
        "        thread.start()\n        thread.join()\n        return found[0]"
    ),
    "builds its kernel in its first call": _FORWARD.format(
        body="self.late = getattr(self, 'late', None) or cuda(KERNEL.replace('again < 12', 'again < 11'), 'rows')\n"
        "        y = torch.empty_like(x)\n"
        "        self.late[4, 1](x, y, x.shape[0], x.shape[1])\n"
        "        return y"
    ),
    "has a thread that sleeps": "threading.Thread(target=lambda: time.sleep(3600.0), daemon=True).start()\n",
    "takes some memory and gives it back": (
        "driver = runner().torch.driver\nfor _ in range(4):\n    driver.free(driver.allocate(1 << 24))\n"
    ),
    "launches in two parts": _FORWARD.format(
        body="y = torch.empty_like(x)\n        half = x.shape[0] // 2\n"
        "        kernel[4, 1](x[:half], y[:half], half, x.shape[1])\n"
        "        kernel[4, 1](x[half:], y[half:], x.shape[0] - half, x.shape[1])\n        return y"
    ),
    "hands over a view of something larger": _FORWARD.format(
        body="y = torch.empty(x.shape[0] + 1, x.shape[1])\n"
        "        kernel[4, 1](x, y[1:], x.shape[0], x.shape[1])\n        return y[1:]"
    ),
    "computes something in its constructor": (
        "class Early(ModelNew):\n    def __init__(self):\n        super().__init__()\n"
        "        x = torch.zeros(4, 4)\n        self.probe = super().forward(x)\n\n\nModelNew = Early\n"
    ),
}
