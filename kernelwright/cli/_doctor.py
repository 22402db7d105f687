"""``kernelwright doctor``: what this machine can do, and what is missing for the default job."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from kernelwright.cli._common import Common, common_options

if TYPE_CHECKING:
    from kernelwright.config import Settings
from kernelwright.errors import UsageError

EXIT_FAILED = 1  # a step of the proof
EXIT_LACKS = 3
ENOUGH_DISK_BYTES = 1 << 30
TOOL_TIMEOUT_S = 10.0
CLOCK = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
PRESSURE = Path("/proc/pressure/cpu")


class Check(NamedTuple):
    """The result of one check. ``missing`` makes the default job fail; ``absent`` is only reported."""

    name: str
    state: Literal["ok", "absent", "missing"]
    detail: str
    hint: str = ""


@click.command()
@click.option("--sandbox", metavar="S", help="The sandbox to test: bwrap, process or none.")
@click.option("--prove-gpu", is_flag=True, help="Test and time the referee on this machine's GPU.")
@click.option("--minutes", type=click.FloatRange(0.5), default=6.0, show_default=True, help="How long that may take.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("proof.json"), help="Where its results go.")
@click.option("--step", "steps", multiple=True, metavar="NAME", help="Only this step of the proof (repeatable).")
@common_options
def doctor(
    common: Common, sandbox: str | None, prove_gpu: bool, minutes: float, output: Path, steps: tuple[str, ...]
) -> int:
    """Say what this machine can do. Exit code 3 if 'kernelwright optimize' cannot run as configured.

    --prove-gpu tests and times the referee on this machine's GPU. Exit code 3 without a GPU, 1 if a step failed, or one
    of its rows.
    """
    settings = common.settings(sandbox=sandbox)
    if prove_gpu:
        return _prove(common, settings, minutes, output, steps)
    checks = [*_machine(), *_tools(), *_cuda_compiler(), *_packages(), *_keys(), *_disk(settings), *_sandbox(settings)]
    missing = [check for check in checks if check.state == "missing"]
    if common.as_json:
        common.show({"ok": not missing, "checks": checks})
    else:
        for line in _lines(checks):
            click.echo(line)
        click.echo(
            "ready: kernelwright optimize P"
            if not missing
            else f"not ready: {', '.join(check.name for check in missing)}"
        )
    return EXIT_LACKS if missing else 0


def _prove(common: Common, settings: Settings, minutes: float, output: Path, steps: tuple[str, ...]) -> int:
    from kernelwright.evaluator import find_device
    from kernelwright.proof import STEPS, failed_rows, prove
    from kernelwright.sandbox import open_sandbox

    unknown = [name for name in steps if name not in STEPS]
    if unknown:
        raise UsageError(f"the proof has no step {unknown[0]!r}", hint=f"its steps: {', '.join(STEPS)}")

    device = None if settings.device == "none" else find_device()
    if device is None:
        why = (
            "the setting device is none" if settings.device == "none" else "nvidia-smi shows none that may be used here"
        )
        click.echo(f"no GPU: {why}", err=True)
        return EXIT_LACKS
    with open_sandbox(settings.sandbox, devices=device.nodes) as sandbox:  # else every step would fail by itself
        click.echo(f"sandbox: {', '.join(sandbox.layers)}", err=True)
    click.echo(f"on {device.name}, at most {minutes:g} minutes, into {output}", err=True)
    given = {"settings": settings.model_dump(mode="json", exclude={"measurement"})}  # a proof has a method of its own
    report = prove(
        device,
        output,
        minutes=minutes,
        steps=steps,
        say=lambda line: click.echo(line, err=True),
        payload=given,
    )
    if common.as_json:
        common.show(report)
    steps_told = report["steps"].values()
    failed = any(step["ended"].startswith("failed") or failed_rows(step.get("results", {})) for step in steps_told)
    return EXIT_FAILED if failed else 0


def _lines(checks: list[Check]) -> Iterator[str]:
    width = max(len(check.name) for check in checks)
    colours = {"ok": "green", "absent": "yellow", "missing": "red"}
    for check in checks:
        state = click.style(f"{check.state:7}", fg=colours[check.state])
        yield f"{state} {check.name:{width}}  {check.detail}".rstrip()
        if check.hint and check.state != "ok":
            yield f"{'':7} {'':{width}}  -> {check.hint}"


def _machine() -> Iterator[Check]:
    from kernelwright.evaluator import usable_cores

    cpus, usable = len(os.sched_getaffinity(0)), usable_cores()
    limit = f", {usable:g} of them at a time by a control group" if usable < cpus else ""
    yield Check("cpu", "ok", f"{_cpu_name()}, {cpus} usable core{'s' * (cpus != 1)}{limit}")
    if usable < 2:
        said = "one core only" if usable == 1 else f"{usable:g} cores at a time"
        yield Check("cores", "absent", said, "timing needs two cores: one for the clock, one for kernels")
    governor = CLOCK.read_text().strip() if CLOCK.exists() else "not shown by this machine"
    yield Check("clocks", "ok", f"governor: {governor}")
    pressure = PRESSURE.read_text().splitlines()[0] if PRESSURE.exists() else ""
    yield Check("pressure", "ok" if pressure else "absent", pressure or "no /proc/pressure; other load goes unnoticed")
    yield _gpu()


def _cpu_name() -> str:
    text = Path("/proc/cpuinfo").read_text(errors="replace") if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else "unknown CPU"


def _gpu() -> Check:
    from kernelwright.evaluator import find_device, read_state, use_by_others

    device = find_device()
    if device is None:
        hint = "C++ kernels are timed on this CPU; Triton and CUDA kernels are compiled and checked, but not timed"
        return Check("gpu", "absent", "no NVIDIA device", hint)
    memory = f"{device.memory_bytes / 2**30:.0f} GiB"
    state = ", ".join(f"{name} {value}" for name, value in read_state(device).items())
    whole = f"{device.name} ({device.architecture}, {memory}), driver {device.driver}; {state}"
    others = use_by_others(device)
    return Check("gpu", "ok", f"{whole}; {others}" if others else whole)


def _first_line(command: list[str]) -> str:
    """The line of a tool's output with its version, else its first line. Empty if the tool is absent or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return next((line for line in lines if re.search(r"\d+\.\d+", line)), lines[0] if lines else "").strip()


def _tools() -> Iterator[Check]:
    compiler = _first_line(["g++", "--version"])
    yield Check("g++", "ok" if compiler else "missing", compiler or "not found", "apt install g++")
    bubblewrap = _first_line(["bwrap", "--version"])
    yield Check("bubblewrap", "ok" if bubblewrap else "absent", bubblewrap or "not found", "apt install bubblewrap")
    for tool, what in (
        ("docker", "sandbox"),
        ("nvcc", "CUDA backend"),
        ("ptxas", "CUDA backend"),
        ("ncu", "profiles"),
        ("compute-sanitizer", "checks of winners on a GPU"),
    ):
        line = _first_line([tool, "--version"])
        yield Check(tool, "ok" if line else "absent", line or f"not found (optional, {what})")


def _cuda_compiler() -> Iterator[Check]:
    from kernelwright import inline
    from kernelwright.inline import cuda_toolchain

    try:
        yield Check("CUDA compiler", "ok", cuda_toolchain.cuda_compiler())
    except inline.BuildError as error:
        yield Check("CUDA compiler", "absent", f"{error.message} (optional, --backend cuda)")


def _packages() -> Iterator[Check]:
    for package, needed in (("torch", True), ("triton", False)):
        try:
            yield Check(package, "ok", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Check(package, "missing" if needed else "absent", "not installed", f"pip install {package}")


def _keys() -> Iterator[Check]:
    from kernelwright.config import keys_present

    for name, present in keys_present().items():
        yield Check(name, "ok" if present else "absent", "set" if present else "not set (the offline coder needs none)")


def _disk(settings: Settings) -> Iterator[Check]:
    for name, path in (("store", settings.store), ("cache", settings.cache_dir)):
        folder = path if path.is_dir() else next(p for p in (path, *path.parents) if p.exists() and p.is_dir())
        free = shutil.disk_usage(folder).free
        writable = os.access(folder, os.W_OK)
        state: Literal["ok", "missing"] = "ok" if writable and free >= ENOUGH_DISK_BYTES else "missing"
        detail = f"{path}: {free / (1 << 30):.1f} GiB free" if writable else f"{path}: not writable"
        yield Check(name, state, detail, "free some space, or choose another place with --store or --set cache_dir=DIR")


def _sandbox(settings: Settings) -> Iterator[Check]:
    from kernelwright.errors import KernelwrightError
    from kernelwright.sandbox import describe_host, open_sandbox, self_test

    for name, detail in describe_host().items():
        yield Check(f"host: {name}", "ok", detail)
    try:
        with open_sandbox(settings.sandbox) as sandbox:
            yield Check(f"sandbox {sandbox.name}", "ok", ", ".join(sandbox.layers))
            for probe in self_test(sandbox):
                yield Check(f"probe: {probe.name}", "ok" if probe.ok else "missing", probe.detail)
    except KernelwrightError as error:
        yield Check(f"sandbox {settings.sandbox}", "missing", error.message, error.hint)
