"""Finds this machine's accelerator by its driver's own tool. The referee itself never opens a device."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import glob
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.evaluator.driver.cuda import LIBRARY
from kernelwright.records import Backend, DeviceClass
from kernelwright.sandbox import Limits, Mount, driver_environment

__all__ = [
    "CPU",
    "Device",
    "find_device",
    "parse_state",
    "read_state",
    "rehearsal",
    "use_by_others",
]

_FIELDS = ("index", "name", "uuid", "compute_cap", "memory.total", "driver_version", "mig.mode.current")
_STATE = (
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "temperature.gpu",
    "power.draw",
    "clocks_event_reasons.active",
    "utilization.gpu",
)
_LISTED_GPU = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)")
_LISTED_PART = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)")
_BUSY_PERCENT, _USED_MIB = 5, 1536  # an idle GPU's driver takes some hundred MiB
_TOOL_TIMEOUT_S = 20.0
_HOST_BYTES = 16 << 30  # of host memory that a worker on a GPU may take: its driver maps a lot
_DRIVER_FOLDERS = ("/sys/bus/pci", "/sys/devices", "/sys/module")  # the driver looks for the device in these; read-only
_PIDS, _FILES = 256, 1024
_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia[0-9]*", "/dev/nvidia-caps/*")


@dataclass(frozen=True)
class Device:
    """The device that kernels run on: an accelerator, its rehearsal, or this CPU.

    Attributes:
        torch_name: its name in torch.
        name: its name in its driver; ``architecture``: such as ``sm_90a``, empty for a rehearsal.
        memory_bytes: its memory; of a part of a GPU (MIG), the memory of the whole GPU.
        uuid: its name for CUDA. parent: of the GPU that it is a part of, if it is one.
        nodes: the device files that a worker needs.
        library: its driver. images: our own code for it, in the order of ``driver.kernels.MODULES``; empty for the
            shipped PTX. Both are other ones in a rehearsal, whose driver is a stand-in.
    """

    torch_name: str
    name: str
    architecture: str
    memory_bytes: int
    uuid: str = ""
    parent: str = ""
    driver: str = ""
    nodes: tuple[str, ...] = ()
    library: str = LIBRARY
    images: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def is_gpu(self) -> bool:
        """False for this CPU, and for a rehearsal on it: that has everything of a device except its speed."""
        return self.torch_name.startswith("cuda")

    @property
    def is_apart(self) -> bool:
        """False for this CPU: its kernels run only in processes that the referee can freeze."""
        return bool(self.torch_name)

    def serves(self, backend: Backend) -> bool:
        """Whether a backend's kernels run on it natively. A stand-in's are C++ and CUDA."""
        if self.is_gpu:
            return backend != "cpp"
        return backend == "cpp" or (self.is_apart and backend == "cuda")

    def serving(self, backend: Backend) -> Device:
        """The device that a backend's candidates run on if this is the only accelerator: it, or this CPU."""
        return self if self.serves(backend) else CPU

    def class_for(self, backend: Backend) -> DeviceClass:
        """The class of shapes that candidates of a backend get if this is the only accelerator."""
        if backend == "cpp":
            return "cpu"
        return "gpu" if self.serves(backend) else "interpreter"

    def limits(self, usual: Limits) -> Limits:
        """Limits of a worker that computes on it: the ``usual`` ones, raised because a GPU's driver needs more."""
        if not self.is_gpu:
            return usual
        memory_bytes = max(usual.memory_bytes, _HOST_BYTES)
        return dataclasses.replace(usual, memory_bytes=memory_bytes, pids=_PIDS, nofile=_FILES, devices=True)

    def variables(self) -> dict[str, str]:
        """Variables for processes that open it: they see this device alone, and find its driver as workers do."""
        found = {"CUDA_VISIBLE_DEVICES": self.uuid} if self.uuid else {}
        if self.is_gpu:
            found |= driver_environment()
            places = [found.get("LD_LIBRARY_PATH", ""), os.environ.get("LD_LIBRARY_PATH", "")]
            found |= {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, places))} if any(places) else {}
        return found

    def mounts(self) -> list[Mount]:
        """Folders of this machine that its driver reads, or that a stand-in for it lies in."""
        if not self.is_gpu:
            return [Mount(os.path.dirname(self.library))] if os.path.isabs(self.library) else []
        return [Mount(path) for path in _DRIVER_FOLDERS if os.path.isdir(path)]


CPU = Device("", "cpu", "", 0)


def rehearsal(library: str, images: Sequence[bytes]) -> Device:
    """This CPU as a device whose driver is a stand-in, at an absolute path. ``images``: our code for it."""
    return Device("cpu", "rehearsal on this CPU", "", 8 << 30, library=library, images=tuple(images))


def find_device(
    ask: Callable[[tuple[str, ...]], str] | None = None, env: Mapping[str, str] | None = None
) -> Device | None:
    """The first NVIDIA GPU that may be used, or None.

    Args:
        ask: runs ``nvidia-smi`` with some arguments and returns its output; empty if it fails.
        env: the environment; an empty ``CUDA_VISIBLE_DEVICES`` hides every device.
    """
    env, ask = os.environ if env is None else env, ask or _ask
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return None
    text = ask((f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"))
    if os.path.exists(_NODES[0]) and not os.path.exists(_NODES[1]):
        _make_nodes()
    nodes = sorted(path for pattern in _NODES for path in glob.glob(pattern))
    wanted = (visible or "").split(",")[0].strip()
    for line in text.splitlines():
        found = _parse_device(line, tuple(nodes))
        if found is None:
            continue
        index, device, is_divided = found
        parts = parse_parts(ask(("-L",)), device) if is_divided else (device,)
        if wanted in ("", index, device.uuid):
            if parts:
                return parts[0]
        elif chosen := next((part for part in parts if part.uuid == wanted), None):
            return chosen
    return None


def _parse_device(line: str, nodes: tuple[str, ...] = ()) -> tuple[str, Device, bool] | None:
    """Index, record, and whether it is divided, of one line of ``nvidia-smi --query-gpu``; None for anything else."""
    row = next(csv.reader([line], skipinitialspace=True), [])
    if len(row) != len(_FIELDS):
        return None
    index, name, uuid, capability, memory, driver, divided = (field.strip() for field in row)
    major, _, minor = capability.partition(".")
    if not (index.isdigit() and major.isdigit() and minor.isdigit() and memory.isdigit()):
        return None
    architecture = f"sm_{major}{minor}{'a' if int(major) >= 9 else ''}"
    device = Device("cuda:0", name, architecture, int(memory) << 20, uuid, driver=driver, nodes=nodes)
    return index, device, divided == "Enabled"


def parse_parts(text: str, whole: Device) -> tuple[Device, ...]:
    """The parts (MIG) of a divided GPU, out of the output of ``nvidia-smi -L``; CUDA sees these alone."""
    found, inside = [], False
    for line in text.splitlines():
        if gpu := _LISTED_GPU.match(line):
            inside = gpu[1] == whole.uuid
        elif inside and (part := _LISTED_PART.match(line)):
            name = f"{whole.name} MIG {part[1]}"
            found.append(dataclasses.replace(whole, name=name, uuid=part[2], parent=whole.uuid))
    return tuple(found)


def read_state(device: Device, ask: Callable[[tuple[str, ...]], str] | None = None) -> dict[str, str]:
    """Clocks, temperature, power and throttling reasons, by ``nvidia-smi``'s names; nothing is ever set."""
    if not device.is_gpu:
        return {}
    return parse_state((ask or _ask)((*_chosen(device), f"--query-gpu={','.join(_STATE)}", "--format=csv,noheader")))


def use_by_others(device: Device, ask: Callable[[tuple[str, ...]], str] | None = None) -> str:
    """What others take of a device that this process has not opened yet, in words; empty if it is idle or not known.

    Of a part of a GPU (MIG) the memory is not told apart, and neither is the work.
    """
    if not device.is_gpu or device.parent:
        return ""
    fields = ("utilization.gpu", "memory.used")
    text = (ask or _ask)((*_chosen(device), f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"))
    row = [field.strip() for field in next(csv.reader(text.splitlines()[:1]), [])]
    if len(row) != len(fields) or not all(field.isdigit() for field in row):
        return ""
    busy, used = map(int, row)
    if busy < _BUSY_PERCENT and used < _USED_MIB:
        return ""
    return f"others use this GPU: it was {busy}% busy, and {used / 1024:.1f} GiB were taken, before it was opened here"


def _chosen(device: Device) -> tuple[str, ...]:
    uuid = device.parent or device.uuid
    return (f"--id={uuid}",) if uuid else ()


def parse_state(text: str) -> dict[str, str]:
    """A device's state out of the output of ``nvidia-smi``; unknown values are left out."""
    row = next(csv.reader(text.splitlines()[:1], skipinitialspace=True), [])
    if len(row) != len(_STATE):
        return {}
    pairs = ((name, value.strip()) for name, value in zip(_STATE, row, strict=True))
    return {name: value for name, value in pairs if value and not value.startswith("[")}


def _make_nodes() -> None:
    """Start the driver once, in another process: on a fresh machine that makes the node that workers need."""
    start = f"import ctypes; ctypes.CDLL({LIBRARY!r}).cuInit(0)"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", start], capture_output=True, timeout=_TOOL_TIMEOUT_S, check=False)


def _ask(arguments: tuple[str, ...]) -> str:
    tool = shutil.which("nvidia-smi") or "/usr/local/nvidia/bin/nvidia-smi"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
        return done.stdout if done.returncode == 0 else ""
    return ""
