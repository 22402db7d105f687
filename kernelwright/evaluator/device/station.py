"""What a device needs once for all problems of a host: its keeper, our compiled code, the tools that examine it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from weakref import WeakKeyDictionary

from kernelwright.evaluator.builds.referee_code import build_library
from kernelwright.evaluator.device.examine import Examiner
from kernelwright.evaluator.device.keeper_client import Keeper
from kernelwright.evaluator.device.queue import QueueLibrary
from kernelwright.evaluator.device.replay import replayer_program
from kernelwright.evaluator.driver import kernels
from kernelwright.evaluator.host.device import Device, use_by_others
from kernelwright.evaluator.host.host import Host

__all__ = ["Station"]

_EXAMINED_S = 90.0
_ARENA = Path(__file__).parent.parent / "worker" / "arena.c"


class Station:
    """One device of one host.

    Attributes:
        keeper: holds inputs and truths. queues: the compiled queue. door: the image of ``door.cu`` for the device.
        replayer: the program that replays a recorded call. arena_library: the compiled ``arena.c``, for workers.
        worker_cpus: processors of workers. examiner: its ceilings and tools.
        shared: what others were seen to take of it before it was opened here, in words; empty if nothing.
    """

    _stations: ClassVar[WeakKeyDictionary[Host, Station]] = WeakKeyDictionary()

    def __init__(self, host: Host, device: Device) -> None:
        """Open the device.

        Raises:
            KeeperError: it cannot be opened.
        """
        self.shared = use_by_others(device)
        limits = host.limits(wall_s=_EXAMINED_S, allow_exec=True, device=device)
        self.device = device
        self.worker_cpus = host.cpus_for(device)
        self.examiner = Examiner(host.sandbox, device, host.cache_dir, limits)
        self.queues = QueueLibrary(host.cache_dir)
        self.replayer = replayer_program(host.cache_dir)
        self.arena_library = build_library(_ARENA, host.cache_dir).read_bytes()
        self.keeper = Keeper(device.library, images=device.images, variables=device.variables())
        host.closing.callback(self.keeper.close)
        self.door = device.images[0] if device.images else self.keeper.door() or kernels.ptx("door")

    @classmethod
    def of(cls, host: Host, device: Device) -> Station:
        """The station of a host's device. Where its keeper has ended, a new one is opened."""
        found = cls._stations.get(host)
        if found is None or not found.keeper.lives:
            before, found = found, cls(host, device)
            if before is not None:  # what it sees now may be workers of its own
                found.shared = before.shared
            cls._stations[host] = found
        return found
