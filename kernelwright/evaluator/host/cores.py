"""The processor cores that this process may use at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_OWN = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def usable_cores(own: Path = _OWN, mount: Path = _MOUNT) -> float:
    """The cores that this process may run on, or fewer where a control group gives it less time.

    A container that was started with ``--cpus=2`` sees all cores of its machine, and is halted for the rest of each
    period of 100 ms once it has used 200 ms of them.

    Args:
        own: the file that names the process's control groups.
        mount: where control groups are mounted, of version 1 or 2.
    """
    return min([float(len(os.sched_getaffinity(0))), *_quotas(own, mount)])


def _quotas(own: Path, mount: Path) -> Iterator[float]:
    """The limits of the process's groups and of all groups that hold these, in cores."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for base in (mount, mount / "unified") if not controllers else (mount / controllers, mount / "cpu"):
            group = base / path.strip("/")
            for folder in (group, *group.parents):
                yield from _quota(folder)
                if folder == base:
                    break


def _quota(folder: Path) -> Iterator[float]:
    try:
        both = folder / "cpu.max"
        if both.exists():
            quota, period = both.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if quota != "max" and int(quota) > 0:
            yield int(quota) / int(period)
    except (OSError, ValueError):
        return
