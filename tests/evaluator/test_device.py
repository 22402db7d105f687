"""Which accelerator is here, by what nvidia-smi prints; and what is built for it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelwright.config import Settings
from kernelwright.evaluator import Referee
from kernelwright.evaluator.builds.builder import BuildService
from kernelwright.evaluator.device.station import Station
from kernelwright.evaluator.host.device import CPU, find_device, parse_state, read_state, use_by_others

ROOT = Path(__file__).parents[2]
H100 = "0, NVIDIA H100 80GB HBM3, GPU-11111111-2222-3333-4444-555555555555, 9.0, 81559, 580.159.04, Disabled\n"
A100 = "1, NVIDIA A100-SXM4-40GB, GPU-99999999-2222-3333-4444-555555555555, 8.0, 40960, 580.159.04, [N/A]\n"


def find(text, **env):
    return find_device(lambda arguments: text, env)


def test_the_first_device_is_taken():
    device = find(H100 + A100)
    assert (device.name, device.architecture, device.torch_name) == ("NVIDIA H100 80GB HBM3", "sm_90a", "cuda:0")
    assert device.memory_bytes == 81559 << 20
    assert device.driver == "580.159.04"
    assert device.is_gpu
    assert [device.serves(backend) for backend in ("cpp", "triton", "cuda")] == [False, True, True]


def test_processes_on_a_device_see_it_alone_and_find_its_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    variables = find(H100).variables()
    assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-11111111-2222-3333-4444-555555555555"
    assert str(tmp_path) in variables["LD_LIBRARY_PATH"].split(os.pathsep)
    assert variables["CUDA_SCALE_LAUNCH_QUEUES"] == "4x"
    assert CPU.variables() == {}


def test_workers_find_packages_in_folders_of_their_own(monkeypatch, tmp_path):
    """As ``pip install --target`` puts them."""
    made, find_spec = tmp_path / "site" / "pydantic" / "__init__.py", importlib.util.find_spec
    made.parent.mkdir(parents=True)
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: SimpleNamespace(origin=str(made)) if name == "pydantic" else find_spec(name, *more),
    )
    settings = Settings(cache_dir=tmp_path / "cache", device="none", sandbox="none")
    with Referee(settings) as referee:
        paths = referee.host.sandbox.environment()["PYTHONPATH"].split(os.pathsep)
    assert str(tmp_path / "site") in paths


@pytest.mark.parametrize(
    ("visible", "architecture"),
    [("1", "sm_80"), ("GPU-99999999-2222-3333-4444-555555555555", "sm_80"), ("0,1", "sm_90a"), ("7", None)],
)
def test_the_environment_chooses(visible, architecture):
    device = find(H100 + A100, CUDA_VISIBLE_DEVICES=visible)
    assert (device.architecture if device else None) == architecture


DIVIDED = H100.replace("Disabled", "Enabled")
LISTED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)
  MIG 3g.40gb     Device  0: (UUID: MIG-aaaaaaaa-0000-0000-0000-000000000000)
  MIG 1g.10gb     Device  1: (UUID: MIG-bbbbbbbb-0000-0000-0000-000000000000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-99999999-2222-3333-4444-555555555555)
  MIG 7g.40gb     Device  0: (UUID: MIG-cccccccc-0000-0000-0000-000000000000)
"""


@pytest.mark.parametrize(
    ("visible", "part"),
    [
        (None, "MIG-aaaaaaaa"),
        ("0", "MIG-aaaaaaaa"),
        ("MIG-bbbbbbbb-0000-0000-0000-000000000000", "MIG-bbbbbbbb"),
        ("MIG-cccccccc-0000-0000-0000-000000000000", None),
    ],
)
def test_of_a_divided_gpu_a_part_is_taken(visible, part):
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    device = find_device(lambda arguments: LISTED if arguments == ("-L",) else DIVIDED, env)
    assert (device.uuid[:12] if device else None) == part
    if device is not None:
        assert device.name == f"NVIDIA H100 80GB HBM3 MIG {'1g.10gb' if 'bbbb' in device.uuid else '3g.40gb'}"
        assert device.variables()["CUDA_VISIBLE_DEVICES"] == device.uuid
        asked = []
        read_state(device, lambda arguments: asked.append(arguments) or "")
        assert asked[0][0] == "--id=GPU-11111111-2222-3333-4444-555555555555"


def test_a_divided_gpu_without_parts_is_not_taken():
    second = find_device(lambda arguments: "" if arguments == ("-L",) else DIVIDED + A100, {})
    assert second.name == "NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("0, 4\n", ""),
        ("37, 4\n", "37% busy"),
        ("0, 12288\n", "12.0 GiB were taken"),
        ("[N/A], [N/A]\n", ""),
        ("", ""),
    ],
)
def test_what_others_take_of_a_device_is_told(told, said):
    found = use_by_others(find(H100), lambda arguments: told)
    assert said in found
    assert bool(found) is bool(said)
    assert use_by_others(CPU, lambda arguments: told) == ""


def test_use_by_others_is_a_finding(stand_in_device, tmp_path, monkeypatch):
    monkeypatch.setattr("kernelwright.evaluator.device.station.use_by_others", lambda device: "others use this GPU")
    settings = Settings(cache_dir=tmp_path / "cache", sandbox="none")
    with Referee(settings, device=stand_in_device) as referee:
        first = Station.of(referee.host, stand_in_device)
        assert first.shared == "others use this GPU"
        monkeypatch.setattr("kernelwright.evaluator.device.station.use_by_others", lambda device: "its own workers")
        first.keeper.close()
        assert Station.of(referee.host, stand_in_device).shared == "others use this GPU"


@pytest.mark.parametrize("visible", ["", "-1"])
def test_the_environment_hides_all(visible):
    assert find(H100, CUDA_VISIBLE_DEVICES=visible) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "0, Some GPU, GPU-1, [N/A], 81559, 1, Disabled\n",
        "a,b,c,d,e,f,g\n\n,,,,,,",
    ],
)
def test_no_device_is_no_error(text):
    assert find(text) is None


def test_the_state_is_read_and_what_is_unknown_left_out():
    text = "1980 MHz, 2619 MHz, 1980 MHz, 41, 118.52 W, 0x0000000000000000, [N/A]\n"
    state = parse_state(text)
    assert state["clocks.sm"] == "1980 MHz"
    assert state["temperature.gpu"] == "41"
    assert "utilization.gpu" not in state
    assert parse_state("") == parse_state("1, 2\n") == {}
    asked = []
    read_state(find(H100), lambda arguments: asked.append(arguments) or text)
    assert not any(word.startswith(("-", "--")) and "query" not in word and "format" not in word and "id=" not in word
                   for word in asked[0])  # fmt: skip
    assert read_state(CPU) == {}


def test_the_tests_for_a_gpu_say_that_they_need_one():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "scripts/test_gpu.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 3
    assert "test-gpu needs an NVIDIA GPU" in done.stderr


def test_settings_or_a_caller_choose_the_device(tmp_path, stand_in_device):
    settings = Settings.load(flags={"cache_dir": str(tmp_path), "sandbox": "none"}, env={})
    with Referee(settings.with_values(device="none")) as referee:
        assert referee.device == CPU
    with Referee(settings, device=stand_in_device) as referee:
        assert referee.device == stand_in_device
        assert referee.environment_for("cpp").id != referee.host.environment.id


@pytest.fixture(scope="module")
def for_hopper(referee):
    cache = referee.settings.cache_dir / "hopper"
    return BuildService(referee.host.sandbox, cache, timeout_s=300.0, memory_bytes=4 << 30, architecture="sm_90a")


def test_a_kernel_is_built_for_the_device_that_is_here(for_hopper):
    message = {"language": "cuda", "flags": ["-use_fast_math"], "name": "twice"}
    source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'
    built = for_hopper.build(message, source)
    assert built.product is not None, built.log
    assert built.product.startswith(b"\x7fELF")
    assert b".text.twice" in built.product
    assert "registers" in built.log
    assert for_hopper.build(message, source).cached


def test_what_does_not_compile_says_why(for_hopper):
    built = for_hopper.build({"language": "cuda", "flags": [], "name": "f"}, "__global__ void f( {")
    assert built.product is None
    assert "error" in built.log
