"""The container engine, Docker or podman, through the ``docker`` SDK: its traits, the base image, containers.

The SDK finds the engine as the ``docker`` command does (``DOCKER_HOST``). The engine must run on this machine's kernel
as root: the sandbox passes descriptors to containers, reads their memory and stops them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import socket
import tarfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from kernelwright.errors import MissingToolError, SandboxError
from kernelwright.sandbox._cgroups import start_time

OWNER_LABEL: Final = "kernelwright.owner"
_IMAGE: Final = "kernelwright-sandbox"
_DIRECTORIES: Final = {"dev": 0o755, "etc": 0o755, "in": 0o755, "job": 0o1777, "proc": 0o755, "sys": 0o755}
_TIMEOUT_S: Final = 60.0
_GONE_S: Final = 15.0
_CHOOSE: Final = "choose --sandbox bwrap, or set DOCKER_HOST to an engine that runs on this machine as root"
_SHARED_KERNEL: Final = ("runc", "crun", "youki", "nvidia", "io.containerd.runc.v2")


class Engine:
    """One running engine.

    Attributes:
        kind: ``docker`` or ``podman``.
        version: its version, as it reports it.
        identity: distinguishes it from every other engine.
        runtime: the program that runs its containers, such as ``runc`` or ``runsc``.
        limits: the resources that it limits by control groups, out of ``memory`` and ``pids``.
        proven: whether one of its containers has started. Until then, ended containers are kept for their output.
    """

    def __init__(self, client: Any, *, runtime: str = "") -> None:
        self._api = client.api
        version, info = self._api.version(), self._api.info()
        components = [component.get("Name", "") for component in version.get("Components") or ()]
        self.kind: Literal["docker", "podman"] = "podman" if any("Podman" in name for name in components) else "docker"
        self.version = str(version.get("Version", ""))
        self.runtime = runtime or str(info.get("DefaultRuntime") or "runc")
        self.identity = f"{self.kind} {self.version} {self.runtime} {info.get('ID', '')}"
        traits = {"memory": "MemoryLimit", "pids": "PidsLimit"}
        self.limits = tuple(name for name, trait in traits.items() if info.get(trait))
        self.proven = False
        self._refuse_unsuitable(info, runtime)

    @property
    def shares_kernel(self) -> bool:
        """Whether programs in its containers run on this kernel, not on one that the runtime emulates."""
        return os.path.basename(self.runtime) in _SHARED_KERNEL

    def close(self) -> None:
        """Close the connections to the engine."""
        self._api.close()

    def base_image(self, links: Sequence[tuple[str, str]]) -> str:
        """The name of the empty image over which the host's directories are mounted. Makes it if it is missing."""
        data = image_archive(links)
        tag = hashlib.sha256(data).hexdigest()[:16]
        with speaking("make the base image"):
            if not self._api.images(f"{_IMAGE}:{tag}"):
                answer = self._api.import_image_from_data(data)
                self._api.tag(json.loads(answer.splitlines()[-1])["status"], _IMAGE, tag)
        return f"{_IMAGE}:{tag}"

    def create(self, request: dict[str, Any]) -> str:
        """Make a container from the body of a ``POST /containers/create`` request. Returns its id."""
        with speaking("make a container"):
            created: str = self._api.create_container_from_config(request)["Id"]
            return created

    def start(self, container: str) -> None:
        """Start a container."""
        with speaking("start a container"):
            self._api.start(container)

    def running(self, container: str) -> bool:
        """Whether a container is running."""
        import docker

        with speaking("look at a container"), contextlib.suppress(docker.errors.NotFound):
            return bool(self._api.inspect_container(container)["State"]["Running"])
        return False

    def last_words(self, container: str) -> str:
        """The output of the first program of an ended container; empty if the container is gone."""
        import docker

        with speaking("read a container's output"), contextlib.suppress(docker.errors.NotFound):
            return bytes(self._api.logs(container, tail=20))[-2000:].decode(errors="replace").strip()
        return ""

    def remove(self, container: str) -> None:
        """End and remove a container, and wait until it is gone. It may be gone already.

        Raises:
            SandboxError: the engine does not answer, or does not remove the container.
        """
        import docker

        deadline = time.monotonic() + _GONE_S
        with speaking("remove a container"):
            while True:
                try:
                    self._api.remove_container(container, force=True, v=True)
                    return
                except docker.errors.NotFound:
                    return
                except docker.errors.APIError:  # it ended a moment ago, and the engine is about to notice or remove it
                    if time.monotonic() > deadline:
                        raise
                time.sleep(0.01)

    def remove_stale(self) -> None:
        """Remove containers whose owner has died."""
        with speaking("list its containers"):
            found = self._api.containers(all=True, filters={"label": OWNER_LABEL})
        for container in found:
            if is_stale((container.get("Labels") or {}).get(OWNER_LABEL, "")):
                self.remove(container["Id"])

    def _refuse_unsuitable(self, info: dict[str, Any], runtime: str) -> None:
        """Raise an error if the engine maps user ids or lacks the requested runtime."""
        options = [option.split(",")[0] for option in info.get("SecurityOptions") or ()]
        if info.get("Rootless") or {"name=rootless", "name=userns"} & set(options):
            raise SandboxError("the container engine maps user ids (rootless or userns-remap)", hint=_CHOOSE)
        known = info.get("Runtimes") or {}
        if runtime and runtime not in known:
            raise MissingToolError(
                f"{self.kind} has no runtime {runtime!r}", hint=f"it knows {', '.join(sorted(known))}; see its manual"
            )


def connect(runtime: str = "") -> Engine:
    """The engine that ``DOCKER_HOST`` names, or the machine's own.

    Raises:
        MissingToolError: the SDK, the engine or the runtime is missing.
        SandboxError: the engine is not usable for the sandbox.
    """
    try:
        import docker
    except ImportError:
        raise MissingToolError(
            "the docker SDK for Python is missing", hint="pip install 'docker>=7,<8', or choose --sandbox bwrap"
        ) from None
    path = _socket_path()
    try:
        with socket.socket(socket.AF_UNIX) as trial:  # the SDK would leak a socket if no engine listens
            trial.connect(path)
        client = docker.from_env(timeout=_TIMEOUT_S)
    except (OSError, docker.errors.DockerException) as error:
        raise MissingToolError(
            f"no container engine answers at {path}: {error}",
            hint="start docker or podman's service, or run the command under scripts/with_docker.sh; if the engine "
            "listens elsewhere, set DOCKER_HOST; or choose --sandbox bwrap",
        ) from None
    try:
        with speaking("describe itself"):
            return Engine(client, runtime=runtime)
    except BaseException:
        client.close()
        raise


def _socket_path() -> str:
    """The path of the engine's socket, as the SDK reads it from the environment.

    Raises:
        SandboxError: the engine does not listen on a socket of this machine.
    """
    import docker

    address = str(docker.utils.parse_host(docker.utils.kwargs_from_env().get("base_url")))
    if not address.startswith("http+unix://"):
        raise SandboxError("the container engine is not reached by a socket of this machine", hint=_CHOOSE)
    return "/" + address.removeprefix("http+unix://").lstrip("/")


def describe() -> str:
    """The engine's name, version and runtime in words, or why none is usable."""
    try:
        engine = connect()
    except (MissingToolError, SandboxError) as error:
        return f"none of use ({error.message[:200]})"
    engine.close()
    return f"{engine.kind} {engine.version}, runtime {engine.runtime}"


@contextlib.contextmanager
def speaking(what: str) -> Iterator[None]:
    """Turn every error of the SDK or the engine into a :class:`SandboxError`."""
    import docker
    import requests

    try:
        yield
    except (docker.errors.DockerException, requests.RequestException) as error:
        said = getattr(error, "explanation", None) or error
        raise SandboxError(f"the container engine cannot {what}: {said}", hint="see: kernelwright doctor") from error


def image_archive(links: Sequence[tuple[str, str]]) -> bytes:
    """A tar archive of empty directories and the host's links into /usr; the same bytes for the same links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, mode in _DIRECTORIES.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        for path, target in sorted(links):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()


def owner() -> str:
    """The label for this process's containers: boot id, pid namespace, process id and start time."""
    pid = os.getpid()
    return "/".join((*_machine(), str(pid), start_time(pid)))


def is_stale(label: str) -> bool:
    """Whether a container's owner is dead. An owner that is not visible from here counts as alive."""
    boot, _, rest = label.partition("/")
    space, _, process = rest.partition("/")
    pid, _, started = process.partition("/")
    own_boot, own_space = _machine()
    if boot != own_boot:
        return True
    if space != own_space:
        return False
    try:
        return start_time(int(pid)) != started
    except (OSError, ValueError, IndexError):
        return True


def _machine() -> tuple[str, str]:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip(), os.readlink("/proc/self/ns/pid")
