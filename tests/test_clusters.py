"""Cluster files: the Slurm job and Ray's launcher file name what exists, and the job does what its comments promise."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from test_docs import COMMANDS, options_of, split

ROOT = Path(__file__).parents[1]
JOB, CLUSTER = ROOT / "examples" / "slurm_array.sh", ROOT / "examples" / "ray_cluster.yaml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Options of sbatch(1) that a header may have, and the form of their values.
HEADER = {
    "job-name": r"[\w-]+",
    "array": r"\d+-\d+",
    "nodes": r"1",
    "ntasks": r"1",
    "cpus-per-task": r"\d+",
    "mem": r"\d+G",
    "gres": r"gpu:1",
    "time": r"\d\d:\d\d:\d\d",
    "signal": r"B:TERM@\d+",
    "requeue": r"",
    "open-mode": r"append",
    "output": r"\S*%A_%a\S*",
}
# Stands in for the command: writes down how it was called, and does what DOES says.
WORKER = """#!/bin/bash
printf '%s\\n' "$*" "device=${KERNELWRIGHT_DEVICE:-}" "cache=$KERNELWRIGHT_CACHE_DIR" > "$CALLED"
eval "$DOES"
"""
SLURM_CONF = """
ClusterName=none
SlurmctldHost=localhost
AuthType=auth/none
CredType=cred/none
GresTypes=gpu
NodeName=localhost CPUs=8 RealMemory=64000 Gres=gpu:1
PartitionName=all Nodes=ALL Default=YES
"""


def named_calls(text: str) -> list[list[str]]:
    """The words of every kernelwright command in a file, in its comments too, and behind paths."""
    lines = [re.sub(r"\S*/kernelwright(?= )", "kernelwright", line) for line in re.sub("['\"]", " ", text).splitlines()]
    found = [re.search(r"(?:^|[\s;&|])(kernelwright [a-z]+\b.*)", line) for line in lines]
    return [words for match in found if match for words in split(re.sub(r"[`#]|\$\{.*?\}\}?|&$", "", match[1]))]


@pytest.mark.parametrize("path", [JOB, CLUSTER], ids=lambda path: path.name)
def test_every_command_and_option_of_a_cluster_file_exists(path):
    calls = [words for words in named_calls(path.read_text()) if tuple(words[1:2]) in COMMANDS]
    assert len(calls) >= 2, named_calls(path.read_text())
    for words in calls:
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= options_of(COMMANDS[(words[1],)]), words


# ------------------------------------------------------------------------------------------------ Slurm


def header() -> dict[str, str]:
    pairs = re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", JOB.read_text(), re.MULTILINE)
    assert len(pairs) == JOB.read_text().count("\n#SBATCH"), "a line of the header is in no form that is known"
    return dict(pairs)


def test_the_header_asks_for_one_gpu_a_signal_and_to_be_requeued():
    found = header()
    assert found.keys() == HEADER.keys()
    assert {name: value for name, value in found.items() if not re.fullmatch(HEADER[name], value)} == {}
    text = JOB.read_text()
    assert text.startswith("#!/bin/bash\n")
    assert text.rindex("#SBATCH") < text.index("set -euo pipefail"), "sbatch reads no options behind the first command"
    seconds = int(found["signal"].partition("@")[2])
    hours, minutes, _ = map(int, found["time"].split(":"))
    grace_s = int(re.search(r"sleep (\d+)", text)[1])
    assert grace_s + 60 <= seconds < 300 < (60 * hours + minutes) * 60


@pytest.fixture
def job(tmp_path):
    """Starts the job with a worker that does what the shell words say."""
    worker = tmp_path / ".venv" / "bin" / "kernelwright"
    worker.parent.mkdir(parents=True)
    worker.write_text(WORKER)
    worker.chmod(0o755)
    (worker.parent / "activate").write_text(f"PATH={worker.parent}:$PATH\n")
    started = []

    def start(*words: str, does: str = "true", **variables: str) -> subprocess.Popen[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_ARRAY_TASK_ID": "3",
            "SPOOL": "/shared/a spool",
            "CALLED": str(tmp_path / "called"),
            "DOES": does,
        }
        environment |= variables
        process = subprocess.Popen(
            ["bash", JOB, *words],
            env={name: value for name, value in environment.items() if value},
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def called(folder: Path) -> list[str]:
    return (folder / "called").read_text().splitlines()


def test_a_task_starts_a_worker_for_the_time_that_is_left(job, tmp_path):
    process = job(SLURM_JOB_END_TIME=str(int(time.time()) + 3600 + 30))
    assert process.communicate()[0].strip() == "task 3: the worker ended with 0 (restarts: 0)"
    assert process.returncode == 0
    words, device, cache = called(tmp_path)
    assert words == "worker --spool /shared/a spool --until-empty --max-minutes 55"
    assert device == "device="
    assert cache.startswith("cache=/tmp/kernelwright-")


def test_a_task_without_a_gpu_leaves_devices_alone_and_may_wait(job, tmp_path):
    job("cpu", WAIT="1", KERNELWRIGHT_CACHE_DIR="/scratch", SLURM_JOB_END_TIME=str(int(time.time()) + 30)).communicate()
    words, device, cache = called(tmp_path)
    assert words == "worker --spool /shared/a spool --max-minutes 1", "however little time is left"
    assert (device, cache) == ("device=none", "cache=/scratch")


@pytest.mark.parametrize(("words", "variables"), [(["tpu"], {}), ([], {"SPOOL": ""})])
def test_a_task_that_is_misled_starts_nothing(job, tmp_path, words, variables):
    process = job(*words, **variables)
    process.communicate()
    assert process.returncode not in (0, 7)
    assert not (tmp_path / "called").exists()


def test_a_task_ends_as_its_worker_does(job):
    process = job(does="exit 7", SLURM_RESTART_COUNT="2")
    assert process.communicate()[0].strip() == "task 3: the worker ended with 7 (restarts: 2)"
    assert process.returncode == 7


@pytest.mark.parametrize("signals", [1, 2])
def test_slurms_signal_reaches_the_worker_and_the_task_waits_for_it(job, tmp_path, signals):
    """The worker may end its job, and is told again after a while; the task ends only then, as the worker did."""
    gate, slept = tmp_path / "gate", tmp_path / "slept"
    os.mkfifo(gate)
    os.mkfifo(slept)
    sleep = tmp_path / ".venv" / "bin" / "sleep"
    sleep.write_text(f"#!/bin/bash\nread -r _ < {slept}\n")
    sleep.chmod(0o755)
    told = f"n=$((${{n:-0}} + 1)); echo told $n; [ $n -lt {signals} ] || exit 5; echo > {slept}"
    process = job(does=f"trap '{told}' TERM; echo ready; while true; do read -r _ < {gate}; done")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 5
    assert process.stdout.read().splitlines() == [
        "task 3: told to end",
        *(f"told {number + 1}" for number in range(signals)),
        "task 3: the worker ended with 5 (restarts: 0)",
    ]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    done = subprocess.run(["shellcheck", JOB], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="slurm-client is not installed")
def test_sbatch_reads_the_header_as_it_is_meant(tmp_path):
    """sbatch prints what it read before it asks the controller, which is not there."""
    (tmp_path / "slurm.conf").write_text(SLURM_CONF)
    environment = {"PATH": os.environ["PATH"], "SLURM_CONF": str(tmp_path / "slurm.conf")}
    command = ["sbatch", "-vv", "--test-only", "--gres=none", str(JOB), "cpu"]
    with subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "end of defined options" in line:
                break
        process.kill()
    read = dict(re.findall(r"^sbatch: ([a-z-]+) *: (.*)$", "".join(lines), re.MULTILINE))
    assert read["gres"] == "none", "an option of the command line takes precedence"
    assert read["signal"] == header()["signal"]
    assert read.keys() >= {*header()} - {"requeue"}


# ------------------------------------------------------------------------------------------------ Ray


def cluster() -> dict:
    return yaml.safe_load(CLUSTER.read_text())


def test_the_launcher_file_has_what_ray_needs():
    found = cluster()
    assert found.keys() >= {"cluster_name", "provider", "auth", "setup_commands"}
    provider = found["provider"]
    assert provider["type"] == "local"
    assert found["min_workers"] == found["max_workers"] == len(provider["worker_ips"])
    assert found["file_mounts"] == {"~/kernelwright": "."}
    assert {"**/.git", "**/.venv", "**/*.db"} <= set(found["rsync_exclude"])
    assert "--head" in found["head_start_ray_commands"][-1]
    assert "--address=$RAY_HEAD_IP:" in found["worker_start_ray_commands"][-1]


def test_the_nodes_install_the_tested_versions_and_the_ray_that_starts_them():
    text = CLUSTER.read_text()
    install = next(line for line in cluster()["setup_commands"] if "pip install" in line)
    assert "--constraint constraints.txt" in install
    assert "ray" in PROJECT["optional-dependencies"]
    versions = set(re.findall(r"ray\[default\]==([\d.]+)", text))
    pinned = re.findall(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert len(versions) == 1
    assert pinned == [*versions]


def test_ray_takes_the_launcher_file():
    util = pytest.importorskip("ray.autoscaler._private.util")
    found = util.prepare_config(cluster())
    util.validate_config(found)
    with pytest.raises(Exception, match="nonsense"):
        util.validate_config({**found, "nonsense": 1})
