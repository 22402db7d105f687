"""Attacks on the host, in both ways in which bubblewrap confines them: as root, where each worker has a user id of its
own, and as an ordinary user, in a user namespace.

Under each identity one process (this file, run as a program) judges all of them in one go, with the screen off, and
prints what became of each. A quiet attack raises ``contained: ...`` where it was refused, so that PASSED means a hole.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import corpus
import pytest

import kernelwright
from kernelwright.config import Settings
from kernelwright.errors import KernelwrightError, MissingToolError, SandboxError
from kernelwright.evaluator import ProblemSession, Referee
from kernelwright.records import Candidate, Status
from kernelwright.sandbox import Sandbox, Worker, open_sandbox

CASES = tuple(case for case in corpus.attacks() if case.host)
SYSTEM_PYTHON = "/usr/bin/python3"
ORDINARY_UID = 60998
CANARY = "KERNELWRIGHT_CANARY"
pytestmark = pytest.mark.timeout(900)  # minutes, on a slow machine
SECRET_VARIABLES = (CANARY, "OPENAI_API_KEY", "GITHUB_TOKEN")
HANG_S = 60  # a verdict that takes longer will never come
CACHE_NAMES = {
    "door",
    "fresh",
    "guarded_memory",
    "share",
    "noise",
    "products",
    "headers",
    "torch_headers",
    "cpu-lane.lock",
    "canary-secret",
}
TRACES = (
    "/job",
    "/tmp/fill",
    "/tmp/sparse",
    "/tmp/deep",
    "/tmp/id",
    "/tmp/accounts",
    "/dev/shm/fill",
    "/dev/shm/sparse",
)
KERNEL_FILES = ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname")
SYSTEM_V_KEY = 0x6B77


# ------------------------------------------------------------------------------------------------ judging them all


class Watched:
    """A sandbox that remembers its workers."""

    def __init__(self, inner: Sandbox) -> None:
        self._inner = inner
        self.workers: list[Worker] = []
        self.uids: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start_worker(self, entry: str, **options: Any) -> Worker:
        """See :class:`Sandbox`."""
        worker = self._inner.start_worker(entry, **options)
        self.workers.append(worker)
        self.uids.add(os.stat(f"/proc/{worker.pid}").st_uid)
        return worker

    def printed(self) -> str:
        """What all workers have printed since the last time, as far as it was kept."""
        texts = [text.decode(errors="replace") for worker in self.workers for text in worker.output()]
        self.workers.clear()
        return "\n".join(texts)


class Hung(Exception):
    """No verdict within ``HANG_S`` seconds."""


def drive(cache_dir: str, names: Collection[str]) -> None:
    """Judge the cases of these names, then an honest candidate; print a line of JSON for each, and one for the rest."""
    signal.signal(signal.SIGALRM, _hung)
    settings = Settings.load(
        flags={
            "cache_dir": cache_dir,
            "measurement": {
                "looks": (8,),
                "window_ms": 0.5,
            },
            "call_timeout_s": 4.0,
            "memory_bytes": 768 << 20,
        },
        env={},
    )
    try:
        sandbox = Watched(open_sandbox("bwrap", python_paths=[_site_packages()]))
    except (MissingToolError, SandboxError) as error:
        print(json.dumps({"unavailable": str(error)}))
        return
    with contextlib.ExitStack() as stack:
        referee = stack.enter_context(Referee(settings, sandbox=sandbox))
        sessions: dict[str, ProblemSession] = {}
        for case in (case for case in CASES if case.name in names):
            if case.problem not in sessions:
                session = referee.open(corpus.problem_of(case.problem), baselines=("eager",))
                sessions[case.problem] = stack.enter_context(session)
                session.screens = False
            print(json.dumps(_judged(sessions[case.problem], case, sandbox)), flush=True)
        for reference, session in sessions.items():
            print(json.dumps(_honest(session, reference)), flush=True)
    sandbox.close()
    print(json.dumps({"layers": sandbox.layers, "left": _left_running(sandbox.uids)}), flush=True)


def _judged(session: ProblemSession, case: corpus.Case, sandbox: Watched) -> dict[str, Any]:
    """One attack: its verdict, or the error that stood in its place; whether the canary showed anywhere."""
    candidate = Candidate(problem_id=session.problem.id, source=case.source, backend=case.backend)
    record: dict[str, Any] = {"name": case.name, "error": ""}
    signal.alarm(HANG_S)
    try:
        evaluation = session.judge(candidate)
        verdict = evaluation.verdict
        text = f"{verdict.reason}{evaluation.artifacts}{verdict.findings}"
        record |= {"status": verdict.status, "reason": verdict.reason}
        evaluation.model_dump_json()
    except (KernelwrightError, Hung, OSError, ValueError) as error:
        text = str(error)
        record["error"] = f"{type(error).__name__}: {error}"[:500]
    finally:
        signal.alarm(0)
    record["leaked"] = os.environ[CANARY] in text + sandbox.printed()
    return record


def _honest(session: ProblemSession, reference: str) -> dict[str, Any]:
    """The reference itself as a candidate, on a problem that has been attacked."""
    source = f"{session.problem.source}\nModelNew = Model\n"
    verdict = session.judge(
        Candidate(problem_id=session.problem.id, source=source, backend="cpp"), control=True
    ).verdict
    return {"name": f"honest {reference}", "status": verdict.status, "reason": verdict.reason}


def _left_running(uids: set[int]) -> list[int]:
    """Processes of the workers' user ids, after the sandbox was closed. Each id is held meanwhile."""
    left = []
    for uid in uids - {os.geteuid()}:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as slot:
            try:
                slot.bind(f"\0kernelwright-slot-{uid}")
            except OSError:
                continue  # another kernelwright on this machine has taken it since
            left += processes_of(uid)
    return left


def _hung(*_: object) -> None:
    raise Hung(f"no verdict within {HANG_S} s")


def _site_packages() -> str:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent.parent)


# ------------------------------------------------------------------------------------------------ under two identities


class Drive(NamedTuple):
    """What one identity saw, and what could be seen from outside before and after."""

    identity: str
    outcomes: dict[str, dict[str, Any]]
    layers: tuple[str, ...]
    left_running: list[int]
    base: Path
    pid: int
    before: dict[str, Any]
    after: dict[str, Any]


@pytest.fixture(scope="module", params=["root", "user"])
def drive_of(request, taken) -> Iterator[Drive]:
    """The cases that run, judged under one identity."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("these tests do not run as root")
    with tempfile.TemporaryDirectory(prefix="kernelwright-host-") as base:  # pytest's own keep other users out
        cases = taken("case", drive_of=request.param) or CASES
        yield _drive_as(request.param, Path(base), [case.name for case in cases])


def _drive_as(identity: str, base: Path, names: Collection[str]) -> Drive:
    command, owner = [sys.executable, "-B"], os.geteuid()
    if identity == "user" and owner == 0:
        owner = ORDINARY_UID
        switch = ["setpriv", "--reuid", str(owner), "--regid", str(owner), "--clear-groups"]
        command = [*switch, _reachable_python(), "-B"]
    token = secrets.token_hex(16)
    cache, environment = _furnish(base, owner, token)
    before = seen_from_outside(base)
    process = subprocess.Popen(
        [*command, __file__, str(cache), *names],
        env=environment,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors.decode()[-2000:]
    lines = [json.loads(line) for line in output.splitlines()]
    if "unavailable" in lines[-1]:
        pytest.skip(lines[-1]["unavailable"])
    assert token not in errors.decode()
    return Drive(
        identity,
        {line["name"]: line for line in lines[:-1]},
        tuple(lines[-1]["layers"]),
        lines[-1]["left"],
        base,
        process.pid,
        before,
        seen_from_outside(base),
    )


def _furnish(base: Path, owner: int, token: str) -> tuple[Path, dict[str, str]]:
    """A home, a cache and a folder for temporary files, with secrets in the first two and in the environment."""
    home, cache, temporary = base / "home", base / "cache", base / "tmp"
    for folder in (home, cache, temporary):
        folder.mkdir()
    for file in (home / ".netrc", home / "canary-secret", cache / "canary-secret"):
        file.write_text(token)
        file.chmod(0o600)
    for path in (base, *base.rglob("*")):
        os.chown(path, owner, owner)
    base.chmod(0o755)
    environment = {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join([str(Path(kernelwright.__file__).parent.parent), _site_packages()]),
        **dict.fromkeys(SECRET_VARIABLES, token),
    }
    return cache, environment


def _reachable_python() -> str:
    """A Python that another user can start and that fits the installed libraries."""
    needed = (corpus.ROOT, Path(_site_packages()))
    if shutil.which("setpriv") is None or not all(_passable(path) for path in needed):
        pytest.skip("another user cannot enter this checkout")
    if _passable(Path(sys.executable).resolve()):
        return sys.executable
    version = "import sys; print(*sys.version_info[:2])"
    found = subprocess.run([SYSTEM_PYTHON, "-c", version], capture_output=True, text=True, check=False)
    if found.stdout.split() != [str(number) for number in sys.version_info[:2]]:
        pytest.skip("no Python of this version that another user can start")
    return SYSTEM_PYTHON


def _passable(path: Path) -> bool:
    return all(os.stat(part).st_mode & 0o001 for part in (path, *path.parents))


# ------------------------------------------------------------------------------------------------ seen from outside


def processes_of(uid: int) -> list[int]:
    """Processes of a user id, zombies left out."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            if int(lines["Uid"].split()[0]) == uid and lines["State"].split()[0] not in "ZX":
                found.append(int(status.parent.name))
    return found


def seen_from_outside(base: Path) -> dict[str, Any]:
    """What an attack could have changed on the host."""
    places = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    shared = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {
        "settings": [Path(path).read_text() for path in KERNEL_FILES],
        "mounts": sorted(place for place in places if place in ("/tmp", "/job", "/in") or place.startswith(str(base))),
        "traces": [path for path in TRACES if os.path.lexists(path)],
        "system v": [line for line in shared if int(line.split()[0]) == SYSTEM_V_KEY],
        "past": time.time() < Path(__file__).stat().st_mtime,
    }


# ------------------------------------------------------------------------------------------------ the tests


@pytest.mark.host_attack
@pytest.mark.matrix(one_in=4, stratum=lambda drive_of, case: drive_of)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_attack_on_the_host_is_contained(drive_of, case):
    outcome = drive_of.outcomes[case.name]
    assert outcome["error"] == ""
    assert outcome["status"] != Status.PASSED
    assert outcome["reason"]


def test_honest_candidates_pass_afterwards(drive_of):
    honest = [outcome for name, outcome in drive_of.outcomes.items() if name.startswith("honest ")]
    assert honest
    for outcome in honest:
        assert outcome["status"] == Status.PASSED, outcome


def test_secrets_never_show(drive_of):
    assert [name for name, outcome in drive_of.outcomes.items() if outcome.get("leaked")] == []


def test_the_sandbox_is_the_one_that_was_meant(drive_of):
    spaces = next(layer for layer in drive_of.layers if layer.startswith("namespaces:"))
    assert ("user" in spaces.split(":")[1].split(",")) == (drive_of.identity == "user")


def test_nothing_is_left_behind(drive_of):
    assert drive_of.left_running == []
    if drive_of.identity == "user" and os.geteuid() == 0:
        assert processes_of(ORDINARY_UID) == []
    assert list(Path("/sys/fs/cgroup").glob(f"**/kernelwright-{drive_of.pid}-*")) == []
    assert list((drive_of.base / "tmp").iterdir()) == []
    assert {path.name for path in (drive_of.base / "cache").iterdir()} <= CACHE_NAMES
    assert drive_of.after == drive_of.before


if __name__ == "__main__":
    drive(sys.argv[1], sys.argv[2:])
