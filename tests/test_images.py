"""The images: what their Dockerfiles copy, install and start; then the images, built and run.

The second half is marked ``docker``: ``scripts/with_docker.sh python -m pytest -rs -m docker tests/test_images.py``. It
takes a quarter of an hour, 20 GB of disk and package indexes. It pulls the base image. Where no registry answers, it
makes one with debootstrap, and gives it this machine's certificates and settings of pip.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import docker
import pytest
from docker.utils import exclude_paths
from test_docs import COMMANDS

from kernelwright.config import NAMES

ROOT = Path(__file__).parents[1]
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")
INSTRUCTIONS = {
    "ARG", "FROM", "RUN", "ENV", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD", "LABEL",
}  # fmt: skip
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"\b([A-Za-z][\w.-]*)(?:\[[\w,]+\])?==([\w.]+)")

KEPT_OUT = (
    ".env",
    ".git/config",
    ".venv/bin/python",
    "kernelwright/.env",
    "kernelwright/a.db",
    "kernelwright/store.db-wal",
    "kernelwright/store.db.graph.db",
    "kernelwright/x/__pycache__/a.pyc",
    "spool/job",
    "store.db",
    "tests/test_docs.py",
    "token",
)


class Step(NamedTuple):
    """An instruction of a Dockerfile, and the words after it."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


def steps(file: str) -> list[Step]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if line.strip() and not line.startswith("#")]
    logical = re.sub(r"\\\n", "", "\n".join(lines)).splitlines()
    return [Step(*line.split(maxsplit=1)) for line in logical]


def pins(text: str) -> dict[str, str]:
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in PIN.findall(text)}


CONSTRAINTS = pins((ROOT / "constraints.txt").read_text())


def environment(file: str) -> dict[str, str]:
    """All variables that an image sets."""
    pairs = [word.partition("=") for step in steps(file) if step.name == "ENV" for word in step.words]
    return {name: value for name, _, value in pairs}


def position(file: str, text: str) -> int:
    return next(at for at, step in enumerate(steps(file)) if text in step.text)


# ------------------------------------------------------------------------------------------------ Dockerfiles


@pytest.mark.parametrize("file", DOCKERFILES)
def test_an_image_starts_the_command_line_as_no_root(file):
    found = steps(file)
    assert {step.name for step in found} <= INSTRUCTIONS
    assert next(step.name for step in found if step.name != "ARG") == "FROM"
    last = {step.name: step for step in found}
    assert last["USER"].text == "1000:1000"
    assert re.search(r"useradd --uid 1000 .* kernelwright", "\n".join(step.text for step in found))
    assert not [step for step in found[position(file, "useradd") + 1 :] if step.name in ("RUN", "COPY")]
    assert last["ENTRYPOINT"].text == '["tini", "--", "kernelwright"]'
    assert "kernelwright" in PROJECT["scripts"]
    serve = {parameter.name: parameter.default for parameter in COMMANDS["serve",].params}
    assert last["EXPOSE"].text == str(serve["port"])


@pytest.mark.parametrize("file", DOCKERFILES)
def test_an_image_writes_to_its_volume(file):
    settings = {name: value for name, value in environment(file).items() if name.startswith("KERNELWRIGHT_")}
    assert {name.removeprefix("KERNELWRIGHT_").lower() for name in settings} == {"store", "cache_dir"} <= set(NAMES)
    assert all(value.startswith("/data/") for value in settings.values())
    assert environment(file)["HOME"] == "/data"
    assert Step("VOLUME", "/data") in steps(file)


@pytest.mark.parametrize("file", DOCKERFILES)
def test_dependencies_come_before_sources_in_the_tested_versions(file):
    installs = [step.text for step in steps(file) if "pip install" in step.text]
    assert position(file, "--requirement requirements.txt") < position(file, "kernelwright kernelwright")
    assert all("--constraint constraints.txt" in text or "--no-deps" in text for text in installs)
    wanted = pins((ROOT / file).read_text())
    assert {name: CONSTRAINTS.get(name, version) for name, version in wanted.items()} == wanted
    assert {version.rpartition(".")[0] for name, version in wanted.items() if name.startswith("nvidia")} <= {
        CONSTRAINTS["nvidia-cuda-nvrtc"].rpartition(".")[0]
    }, "one CUDA for nvcc and NVRTC"
    (extras,) = [step.words[0].partition("=")[2].split() for step in steps(file) if step.text.startswith("EXTRAS=")]
    for extra in extras:
        for need in PROJECT["optional-dependencies"][extra]:
            assert re.split(r"[^\w-]", need)[0].lower() in CONSTRAINTS, f"{need}: no version in constraints.txt"


def test_both_images_are_alike_but_for_cuda():
    """One file differs from the other by the steps that bring CUDA, so that a change of one is made in the other."""
    cpu, cuda = (steps(file) for file in DOCKERFILES)
    assert [step for step in cpu if step not in cuda and "TORCH_INDEX_URL" not in step.text] == []
    more = [step for step in cuda if step not in cpu]
    assert all(re.search(r"cuda|NVIDIA|TORCH_INDEX_URL", step.text) for step in more)


@pytest.mark.parametrize("file", DOCKERFILES)
def test_what_an_image_copies_is_there_and_no_secret_or_store_is(file, tmp_path):
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    sent = exclude_paths(str(ROOT), patterns, dockerfile=file)
    for step in steps(file):
        for source in step.words[:-1] if step.name == "COPY" else ():
            assert (ROOT / source).exists()
            assert source in sent, f"{source}: .dockerignore leaves it out"
    package = {
        path for path in (ROOT / "kernelwright").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    missing = {str(path.relative_to(ROOT)) for path in package} - sent
    assert {path for path in missing if not re.search(r"\.(db|pyc)\b|/\.", path)} == set()
    for name in KEPT_OUT:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("secret")
    (tmp_path / "kernelwright" / "a.py").write_text("")
    files = {path for path in exclude_paths(str(tmp_path), patterns) if (tmp_path / path).is_file()}
    assert files == {"kernelwright/a.py"}
    names = [step.text.partition("=")[0] for step in steps(file) if step.name in ("ARG", "ENV")]
    assert not [name for name in names if re.search(r"TOKEN|KEY|SECRET|PASSWORD", name)]


# ------------------------------------------------------------------------------------------------ with an engine

BASE = ("debian", "bookworm-slim")
# The options of docs/clusters.md, as the engine gets them: its command turns systempaths=unconfined into two lists.
NAMESPACES = {"SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"]}
OWN_PROC = {"MaskedPaths": [], "ReadonlyPaths": []}
OPEN = {**NAMESPACES, **OWN_PROC}
STRANGER = "4321:4321"
# How this machine reaches its package index.
SITE = ("/etc/pip.conf", "/usr/local/share/ca-certificates", "/etc/ssl/certs/ca-certificates.crt")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A client of the engine, which has the base image."""
    client = docker.from_env(timeout=1800)
    with contextlib.closing(client):
        names = {tag for image in client.images.list() for tag in image.tags}
        if ":".join(BASE) not in names:
            try:
                client.images.pull(*BASE)
            except docker.errors.APIError:
                client.api.import_image_from_file(str(base_archive(tmp_path_factory.mktemp("base"))), *BASE)
        yield client


def base_archive(folder: Path) -> Path:
    """A Debian as small as the base image, which trusts whom this machine trusts."""
    root, archive = folder / "root", folder / "base.tar"
    assert shutil.which("debootstrap"), "no registry answers: apt install debootstrap"
    made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout
    for path in map(Path, SITE):
        target = root / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        elif path.exists():
            shutil.copy(path, target)
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    shutil.rmtree(root)
    return archive


@contextlib.contextmanager
def index_of_torch(folder: Path) -> Iterator[str]:
    """The address of an index with the torch that pip finds here, or of the one that TORCH_INDEX_URL names."""
    if os.environ.get("TORCH_INDEX_URL"):
        yield os.environ["TORCH_INDEX_URL"]
        return
    wanted = f"torch=={CONSTRAINTS['torch']}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--dest",
        folder / "simple" / "torch",
        wanted,
    ]
    subprocess.run(command, check=True)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


def build(engine, file: str, **arguments: str) -> str:
    """The name of an image, built from this tree."""
    name = f"kernelwright-test:{file.lower()}"
    try:
        engine.images.build(
            path=str(ROOT), dockerfile=file, tag=name, network_mode="host", buildargs=arguments, rm=True
        )
    except docker.errors.BuildError as error:
        raise AssertionError("".join(str(line.get("stream", "")) for line in error.build_log)[-4000:]) from None
    return name


@pytest.fixture(scope="module")
def image(engine, tmp_path_factory):
    """The image for a CPU."""
    with index_of_torch(tmp_path_factory.mktemp("index")) as address:
        return build(engine, "Dockerfile", TORCH_INDEX_URL=address)


@pytest.fixture
def volume(engine):
    """A volume for ``/data``, as an option of a container."""
    made = engine.volumes.create()
    yield {"Binds": [f"{made.name}:/data"]}
    made.remove(force=True)


@pytest.fixture
def start(engine, volume):
    """Starts containers, and removes them after the test, before its volume."""
    started = []

    def start(image: str, *words: str, options: Mapping[str, Any] = MappingProxyType({}), **more: Any) -> Any:
        host = {"NetworkMode": "host", **options}
        started.append(
            engine.api.create_container_from_config({"Image": image, "Cmd": words, "HostConfig": host, **more})
        )
        engine.api.start(started[-1]["Id"])
        return engine.containers.get(started[-1]["Id"])

    yield start
    for container in started:
        engine.api.remove_container(container["Id"], force=True, v=True)


@pytest.fixture
def run(start):
    """Runs a container to its end: its exit status and its output."""

    def run(*words: str, **options: Any) -> tuple[int, str]:
        container = start(*words, **options)
        return container.wait()["StatusCode"], container.logs().decode()

    return run


def checks(output: str) -> dict[str, dict[str, str]]:
    """The checks of ``doctor --json`` by their names."""
    return {check["name"]: check for check in json.loads(output)["checks"]}


@pytest.mark.docker
@pytest.mark.timeout(3600)
def test_the_image_has_what_the_doctor_wants(image, run):
    assert run(image, "-u", Entrypoint="id") == (0, "1000\n")
    code, said = run(image, "doctor", "--json")
    found = checks(said)
    assert code == 0
    assert {name: found[name]["state"] for name in ("g++", "bubblewrap", "torch", "triton", "store", "cache")} == (
        dict.fromkeys(("g++", "bubblewrap", "torch", "triton", "store", "cache"), "ok")
    )
    versions = run(image, "-m", "pip", "freeze", Entrypoint="python")[1]
    installed = pins(re.sub(r"\+cpu$", "", versions, flags=re.MULTILINE))
    assert installed.keys() >= {"torch", "triton", "fastapi", "ray", "numpy"}
    assert {name: version for name, version in CONSTRAINTS.items() if installed.get(name, version) != version} == {}


@pytest.mark.docker
@pytest.mark.timeout(3600)
def test_a_container_without_the_options_falls_back_aloud_and_never_silently(image, run):
    code, said = run(image, "doctor", "--json")
    (name,) = [name for name in checks(said) if name.startswith("sandbox ")]
    assert (code, name) == (0, "sandbox process")
    assert "no-namespaces" in checks(said)[name]["detail"]
    code, said = run(image, "optimize", "level1/softmax", "--rounds", "1", "--sandbox", "bwrap")
    assert code == 3
    assert "namespace" in said
    for half in (NAMESPACES, OWN_PROC):
        assert run(image, "doctor", "--sandbox", "bwrap", options=half)[0] == 3


@pytest.mark.docker
@pytest.mark.timeout(3600)
def test_a_container_with_the_options_judges_in_bubblewrap_as_any_user(image, run, volume):
    wanted = ["--set", "baselines=eager", "--set", "measurement=quick"]
    optimize = ["optimize", "level1/softmax", "--rounds", "1", "--json", *wanted]
    code, said = run(image, *optimize, options=OPEN | volume, User=STRANGER)
    assert code == 0, said
    assert "sandbox bwrap" in checks(run(image, "doctor", "--json", options=OPEN | volume, User=STRANGER)[1])
    code, said = run(image, "kernels", "best", options=volume, User=STRANGER)
    assert code == 0
    assert "level1/softmax" in said, "the store was not kept in the volume"


@pytest.mark.docker
@pytest.mark.timeout(3600)
def test_the_leaderboard_is_served_and_ends_when_it_is_told_to(image, start, run, volume):
    assert run(image, "store", "check", options=volume)[0] == 0
    container = start(image, "serve", "--port", "0", options=volume)
    lines = (line.decode() for line in container.logs(stream=True))
    address = next(found[0] for line in lines if (found := re.search(r"http://[\d.:]+", line)))
    with urllib.request.urlopen(address, timeout=60) as page:
        assert b"kernelwright" in page.read()
    container.stop(timeout=60)
    assert container.wait()["StatusCode"] not in (1, 137), container.logs().decode()


@pytest.mark.docker
@pytest.mark.timeout(3600)
def test_a_worker_ends_when_its_spool_is_empty(image, run, tmp_path):
    tmp_path.chmod(0o777)
    options = {**OPEN, "Binds": [f"{tmp_path}:/spool"]}
    command = ["worker", "--spool", "/spool", "--until-empty", "--max-minutes", "1", "--json"]
    code, said = run(image, *command, options=options, User=STRANGER)
    assert code == 0, said
    assert "the spool is empty" in said


@pytest.mark.docker
@pytest.mark.timeout(3600)
def test_the_image_for_gpus_compiles_cuda_without_a_gpu(engine, run):
    cuda = build(engine, "Dockerfile.cuda")
    code, said = run(cuda, "doctor", "--json", options=OPEN)
    found = checks(said)
    assert code == 0, said
    assert "sandbox bwrap" in found
    assert {name: found[name]["state"] for name in ("nvcc", "ptxas", "CUDA compiler", "torch")} == (
        dict.fromkeys(("nvcc", "ptxas", "CUDA compiler", "torch"), "ok")
    )
    assert "+cpu" not in found["torch"]["detail"]
    wanted = ["--set", "baselines=eager", "--set", "measurement=quick", "--backend", "cuda", "--json"]
    said = run(cuda, "optimize", "level1/softmax", "--rounds", "1", *wanted, options=OPEN)[1]
    assert '"checked"' in said, said
