"""The parts of the host that a sandbox sees: system programs, this Python, and the package, all read-only."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WRITABLE: Final = ("/tmp", "/job", "/dev/shm")
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SYSTEM: Final = ("/usr", "/opt/rh")
_LINKED: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")  # links into /usr if that is merged
_DRIVER: Final = "libcuda.so.1"
_DRIVER_FOLDERS: Final = ("/usr/local/nvidia/lib64", "/usr/lib/wsl/lib")  # locations on container hosts and WSL
_FILES: Final = ("/etc/alternatives", "/etc/ld.so.cache", "/sys/devices/system/cpu")


@dataclass(frozen=True)
class View:
    """The description of a file system to build.

    Attributes:
        binds: (host path, path inside), read-only.
        links: (path inside, target) of symbolic links.
        directories: directories to make first, parents before children.
    """

    binds: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    directories: tuple[str, ...]

    @property
    def readable(self) -> tuple[str, ...]:
        """Host paths that may be read, for a sandbox that has no file system of its own."""
        return tuple(source for source, _ in self.binds) + _LINKED


def package_parent() -> str:
    """The directory that holds the ``kernelwright`` package."""
    here = os.path.abspath(__file__)
    return os.path.dirname(os.path.dirname(os.path.dirname(here)))


def build_view(python_paths: Sequence[str]) -> View:
    """The view for this interpreter. ``python_paths`` are importable in addition to the package."""
    package = os.path.join(package_parent(), "kernelwright")
    wanted = [*_SYSTEM, *_FILES]
    for path in (sys.prefix, sys.base_prefix, package, *driver_folders(), *python_paths):
        wanted += [os.path.abspath(path), os.path.realpath(path)]
    binds: list[tuple[str, str]] = []
    links: list[tuple[str, str]] = []
    for name in _LINKED:
        if os.path.islink(name):
            links.append((name, os.readlink(name)))
        elif os.path.isdir(name):
            wanted.append(name)
    for path in sorted(set(wanted), key=lambda p: (p.count("/"), p)):
        if os.path.exists(path) and not any(_within(path, outer) for outer, _ in binds):
            binds.append((path, path))
    return View(tuple(binds), tuple(links), parents([target for _, target in binds] + list(WRITABLE)))


def driver_environment() -> dict[str, str]:
    """Variables for workers that devices are shown to.

    Torch looks for devices without opening them, more calls can be enqueued ahead, and devices have the numbers of
    nvidia-smi.
    """
    drivers = os.pathsep.join(driver_folders())
    variables = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "CUDA_SCALE_LAUNCH_QUEUES": "4x"}
    return variables | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | ({"LD_LIBRARY_PATH": drivers} if drivers else {})


def driver_folders() -> tuple[str, ...]:
    """Folders with a GPU driver that the loader may find only through ``LD_LIBRARY_PATH``."""
    named = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    known = dict.fromkeys((*named, *_DRIVER_FOLDERS))
    return tuple(folder for folder in known if os.path.exists(os.path.join(folder, _DRIVER)))


def parents(paths: Sequence[str]) -> tuple[str, ...]:
    """Every directory above ``paths`` except the root, outermost first."""
    found: set[str] = set()
    for path in paths:
        directory = os.path.dirname(path)
        while directory not in ("/", ""):
            found.add(directory)
            directory = os.path.dirname(directory)
    return tuple(sorted(found))


def base_environment(threads: int, python_paths: Sequence[str], home: str = "/job") -> dict[str, str]:
    """The whole environment of a sandboxed program. It takes nothing from this process's environment.

    Large pages and no trimming (GLIBC_TUNABLES) keep the allocator's page faults out of timed windows. Thread counts
    and caches are fixed, so that the reference and a candidate run under the same conditions.
    """
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": home,
        "LANG": "C.UTF-8",
        "USER": "kernelwright",
        "LOGNAME": "kernelwright",
        "TMPDIR": "/tmp" if home == "/job" else home,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",  # for numpy, which would start threads at import, in the zygote
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=17179869184"
        ":glibc.malloc.trim_threshold=17179869184:glibc.malloc.top_pad=268435456",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join([package_parent(), *(os.path.abspath(path) for path in python_paths)]),
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor" if home == "/job" else f"{home}/inductor",
        "TRITON_CACHE_DIR": "/tmp/triton" if home == "/job" else f"{home}/triton",
    }


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(outer.rstrip("/") + "/")
