"""The whole way with the real referee, sandbox, generator and store, on one tiny problem."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROBLEM = """
import torch
from torch import nn

ROWS = 64
COLUMNS = 96

PROBLEM = {
    "title": "Scaled shifted tanh",
    "category": "pointwise",
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {"cpu": [{"ROWS": 64, "COLUMNS": 96}, {"ROWS": 3, "COLUMNS": 7}]},
}


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(columns))

    def forward(self, x):
        return torch.relu(x * 2.0 + self.shift) * 0.5


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return [COLUMNS]
"""

needs_tools = pytest.mark.skipif(
    shutil.which("g++") is None or shutil.which("bwrap") is None, reason="needs g++ and bubblewrap"
)
QUICK = """
rounds = 2
baselines = ["eager"]

[measurement]
looks = [12]
window_ms = 0.5
confirm_pairs = 5
confirm_max_pairs = 5
check_trials = 2
pool_bytes = "16MiB"
noise_bound = 0.3
"""  # tests run on busy machines, where a control strays far
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_cache):
    folder = tmp_path_factory.mktemp("real")
    make_cache(folder / "cache")
    (folder / "scaled.py").write_text(PROBLEM)
    (folder / "kernelwright.toml").write_text(QUICK)
    return folder


def kernelwright(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "KERNELWRIGHT_STORE": str(folder / "store.db"),
        "KERNELWRIGHT_CACHE_DIR": str(folder / "cache"),
        "KERNELWRIGHT_DEVICE": "none",
    }
    command = [sys.executable, "-m", "kernelwright.cli", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment
    )


def result(folder: Path, *words: str, code: int = 0) -> dict:
    with kernelwright(folder, *words, "--json") as process:
        out, err = process.communicate(timeout=840)
    assert process.returncode == code, err + out
    return json.loads(out)


@pytest.fixture(scope="module")
def killed_and_resumed(place):
    """``optimize`` killed with SIGKILL once its first evaluation is stored, then resumed to its end."""
    with kernelwright(place, "optimize", "scaled.py") as process:
        lines = []
        while not any("round 1/2" in line for line in lines):
            lines.append(process.stderr.readline())
            assert lines[-1], "".join(lines)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL
    assert result(place, "store", "check")["ok"]
    with kernelwright(place, "resume", "last", "--json") as resumed:
        out, err = resumed.communicate(timeout=840)
    assert resumed.returncode == 0, err
    return json.loads(out), err


@needs_tools
def test_a_killed_run_ends_with_a_confirmed_kernel_and_repeats_nothing(place, killed_and_resumed):
    data, err = killed_and_resumed
    row = data["problems"][0]
    assert data["status"] == "finished"
    assert row["stage"] == "confirmed"
    assert row["speedup"]["eager"]["low"] <= row["speedup"]["eager"]["median"] <= row["speedup"]["eager"]["high"]
    assert any("namespaces" in layer for layer in data["sandbox"])
    assert "round 1/2" not in err
    shown = result(place, "kernels", "show", row["candidate"])
    stages = [entry["verdict"]["stage"] for entry in shown["evaluations"]]
    assert sorted(stages) == ["confirmed", "timed"], "one search evaluation and one confirmation, each once"
    assert result(place, "store", "check")["ok"]


HALF_DONE = """
import torch
from torch import nn

from kernelwright.inline import cpp

lib = cpp('''
#include <cstdint>
extern "C" void scale(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n / 2; i++) y[i] = 2.0f * x[i];
}
''')


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        y = torch.zeros_like(x)
        lib.scale(x, y, x.numel())
        return y
"""


@pytest.mark.untimed
@needs_tools
@pytest.mark.parametrize(
    ("change", "stage", "rule"),
    [
        ("", "check", "check-incorrect-numerical"),
        ("import os\nos.kill(os.getppid(), 9)\n", "screen", "process-control"),
    ],
)
def test_a_refused_candidate_is_told_the_stage_the_rule_and_the_evidence(place, change, stage, rule):
    (place / "refused.py").write_text(change + HALF_DONE)
    data = result(place, "evaluate", "refused.py", "--problem", "scaled.py", code=1)
    assert data["failed_stage"] == stage
    refusing = [finding for finding in data["findings"] if finding["effect"] == "refuses"]
    assert [finding["rule"] for finding in refusing] == [rule]
    assert refusing[0]["evidence"]
    assert data["reason"]
    assert data["timing"] is None


@needs_tools
def test_the_exported_kernel_matches_the_reference_without_kernelwright(place, killed_and_resumed):
    sha = killed_and_resumed[0]["problems"][0]["candidate"]
    result(place, "kernels", "export", sha[:12], "-o", "kernel.py")
    code = (
        "import sys, torch, kernel\n"
        "assert not any(name.split('.')[0] == 'kernelwright' for name in sys.modules)\n"
        "model = kernel.Model(*kernel.get_init_inputs()).eval()\n"
        "x, = kernel.get_inputs()\n"
        "with torch.no_grad():\n"
        "    print(model.kernel_active(x))\n"
        "    torch.testing.assert_close(model(x), torch.relu(x * 2 + model.shift) * 0.5)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / "xdg")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=place,
        env=environment,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(True")


@needs_tools
def test_a_live_module_becomes_a_drop_in(place):
    code = (
        "import torch, kernelwright, warnings\n"
        "from pathlib import Path\n"
        "from kernelwright.config import Settings\n"
        "model = torch.nn.Sequential(torch.nn.GELU(), torch.nn.LayerNorm(96)).eval()\n"
        "x = torch.randn(64, 96)\n"
        "settings = Settings.load(config_file=Path('kernelwright.toml'))\n"
        "standard = settings.measurement.with_values(noise_bound=0.014)\n"
        "fast = kernelwright.optimize(model, (x,), settings=settings, rounds=1, measurement=standard)\n"
        "with torch.no_grad():\n"
        "    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)\n"
        "    torch.testing.assert_close(fast(x[:3]), model(x[:3]), rtol=1e-4, atol=1e-4)\n"
        "print(fast is model)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "KERNELWRIGHT_STORE": str(place / "api.db"),
        "KERNELWRIGHT_CACHE_DIR": str(place / "cache"),
        "XDG_CACHE_HOME": str(place / "xdg"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=place,
        env=environment,
        check=False,
        timeout=840,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in {"True", "False"}
    assert done.stdout.strip() == "False" or "no faster kernel" in done.stderr
    with contextlib.closing(sqlite3.connect(place / "api.db")) as store:
        found = [status for (status,) in store.execute("select status from evaluations")]
    assert "PASSED" in found


@pytest.mark.untimed
@needs_tools
def test_a_bad_reference_ends_as_invalid_reference_with_its_line(place):
    source = PROBLEM.replace("import torch\n", "import torch\nimport not_installed_here\n")
    (place / "bad.py").write_text(source)
    data = result(place, "optimize", "bad.py", code=1)
    row = data["problems"][0]
    assert (row["status"], row["candidate"]) == ("INVALID_REFERENCE", None)
    assert "not_installed_here" in row["reason"]
    assert "line 3" in row["reason"]


@pytest.mark.untimed
@needs_tools
def test_doctor_finds_the_machine_ready(place):
    data = result(place, "doctor")
    assert data["ok"]
    names = {check["name"] for check in data["checks"]}
    assert "sandbox bwrap" in names
    assert any(name.startswith("probe: ") for name in names)


@pytest.mark.untimed
@needs_tools
def test_lint_runs_the_reference_in_the_sandbox(place):
    random = PROBLEM.replace("* 0.5\n", "* torch.rand_like(x)\n")
    (place / "random_one.py").write_text(random)
    data = result(place, "problems", "lint", "random_one.py", code=1)
    assert any(finding["severity"] == "error" for finding in data["findings"])


@pytest.mark.untimed
def test_capture_writes_a_problem(place):
    (place / "mine.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval(),"
        " (torch.randn(2, 8),)\n"
    )
    data = result(place, "problems", "capture", "mine:make", "-o", "captured.py")
    assert data["problem"] == "captured.py"
    shown = result(place, "problems", "show", "captured.py")
    assert shown["meta"]["category"] == "captured"


@pytest.mark.untimed
@needs_tools
def test_triton_kernels_are_written_checked_and_ranked_without_a_device(place):
    words = ("optimize", "scaled.py", "--backend", "triton", "--store", "triton.db")
    with kernelwright(place, *words) as process:
        out, err = process.communicate(timeout=840)
    assert process.returncode == 0, err
    assert "no time was measured: there is no device here" in " ".join(out.split())
    assert "sm_90: 1 kernel," in out
    assert "right, not timed: stage checked" in err
    assert result(place, "kernels", "best", "--store", "triton.db")["kernels"] == []
    (row,) = result(place, "runs", "show", "last", "--store", "triton.db")["problems"]
    assert (row["stage"], row["speedup"], row["latency_ms"], row["confirmed"]) == ("checked", {}, None, False)
    assert [kernel["candidate"] for kernel in row["ranked"]].index(row["candidate"]) == 0
    assert all("registers" in kernel["evidence"] for kernel in row["ranked"])
    assert len(row["ranked"]) == 2


@needs_tools
def test_an_archive_is_made_shown_and_used(place):
    shown = result(place, "problems", "archive", "scaled.py")
    assert (shown["generators"], shown["archive"]) == ([], "")
    made = result(place, "problems", "archive", "scaled.py", "--make")
    faults = {name.partition(" of ")[0] for name in made["made"]["archive"]["survivors"]}
    assert "dropped-after-a-climb" in faults  # climbs of 16 numbers do not happen by chance
    assert made["generators"]
    with kernelwright(place, "problems", "archive", "scaled.py") as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "sorted" in out
    assert "dropped-after-a-climb" in out
    verdict = result(place, "optimize", "scaled.py", "--rounds", "1")
    shown = result(place, "kernels", "show", verdict["problems"][0]["candidate"])
    assert {entry["verdict"]["correctness"]["archive"] for entry in shown["evaluations"]} >= {made["archive"]}


FUSED = HALF_DONE.replace(
    "void scale(const float* x, float* y, int64_t n) {\n  for (int64_t i = 0; i < n / 2; i++) y[i] = 2.0f * x[i];",
    "void scale(const float* x, const float* shift, float* y, int64_t rows, int64_t n) {\n"
    "  for (int64_t r = 0; r < rows; r++, x += n, y += n)\n"
    "    for (int64_t c = 0; c < n; c++) {\n"
    "      const float v = x[c] * 2.0f + shift[c];\n"
    "      y[c] = (v > 0 ? v : 0) * 0.5f;\n"
    "    }",
).replace(
    "y = torch.zeros_like(x)\n        lib.scale(x, y, x.numel())",
    "y = torch.empty_like(x)\n        lib.scale(x, self.shift, y, x.shape[0], x.shape[1])",
)


@needs_tools
def test_another_variant_is_timed_and_all_are_checked(place):
    (place / "fused.py").write_text(FUSED)
    verdict = result(place, "evaluate", "fused.py", "--problem", "scaled.py", "--variant", "ROWS=3")
    assert (verdict["problem"], verdict["stage"]) == ("file/scaled@1", "timed")
    assert verdict["variant"] == {"number": 1, "constants": {"ROWS": 3, "COLUMNS": 7}, "inputs": ["x float32[3, 7]"]}
    assert verdict["correctness"]["variants"] == 2
    rows = result(place, "kernels", "best", "scaled.py@1")["kernels"]
    assert [(row["candidate"], row["variant"], row["inputs"]) for row in rows] == [
        (verdict["candidate"], 1, "x float32[3, 7]")
    ]


@pytest.mark.untimed
@needs_tools
def test_a_file_of_kernels_for_several_shapes_works_without_kernelwright(place):
    sources = [FUSED, FUSED.replace("scale(", "scale_it(")]
    names = []
    for number, source in enumerate(sources):
        (place / f"fused{number}.py").write_text(source)
        words = ("--no-time", "--variant", str(number), "--store", "shapes.db")
        verdict = result(place, "evaluate", f"fused{number}.py", "--problem", "scaled.py", *words)
        assert verdict["variant"]["number"] == number
        names.append(verdict["candidate"][:12])
    made = result(place, "kernels", "export", *names, "--dispatch", "-o", "dispatched.py", "--store", "shapes.db")
    assert [route["candidate"][:12] for route in made["routes"]] == names
    code = (
        f"import sys; sys.path.insert(0, {str(place)!r})\n"
        "import torch, dispatched as d\n"
        "for shape in ((64, 96), (3, 7), (5, 96)):\n"
        "    model, x = d.Model(shape[1]).eval(), torch.randn(shape)\n"
        "    with torch.no_grad():\n"
        "        print(model.kernel_for(x) or 'reference')\n"
        "        torch.testing.assert_close(model(x), torch.relu(x * 2 + model.shift) * 0.5)\n"
        "assert not any(name.split('.')[0] == 'kernelwright' for name in sys.modules)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / "xdg")}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, env=environment, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*names, "reference"]


KNOBBED = """
import torch
from torch import nn

from kernelwright.inline import cpp

KNOBS = {"STEP": [1, 4], "NAME": ["first", "second"]}

lib = cpp('''
#include <cstdint>
extern "C" void scale(const float* x, const float* shift, float* y, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = 0; i < columns; i += STEP)
      for (int64_t j = i; j < i + STEP && j < columns; j++) {
        const float v = x[row * columns + j] * 2.0f + shift[j];
        y[row * columns + j] = (v > 0 ? v : 0) * 0.5f;
      }
}
''', defines={"STEP": STEP, "OTHER": NAME == "second"})


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.scale(x, self.shift, y, *x.shape)
        return y
"""


@needs_tools
def test_knobs_are_tuned_and_what_is_said_is_confirmed(place):
    (place / "knobbed.py").write_text(KNOBBED)
    words = ("tune", "knobbed.py", "--problem", "scaled.py", "--max-evaluations", "4", "--max-seconds", "600")
    data = result(place, *words, "--store", "tune.db")
    assert data["outcome"] in {"improved", "default", "undecided"}
    assert data["ratio"]["low"] <= data["ratio"]["median"] <= data["ratio"]["high"]
    assert (data["judged"], data["space"]) == (2, 4), "NAME changes no machine code"
    assert len([tried for tried in data["tried"] if tried["twin"]]) == 2
    shown = result(place, "kernels", "show", data["best"], "--store", "tune.db")
    assert shown["evaluations"][0]["verdict"]["stage"] == "timed"
    (row,) = result(place, "runs", "show", "last", "--store", "tune.db")["problems"]
    assert row["candidate"] == data["best"]
