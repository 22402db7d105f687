"""The whole way with the real referee: a server process, a client, a right kernel and a wrong one, and its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from kernelwright.records import Status
from kernelwright.rl import RemoteScorer
from kernelwright.rl._scoring import ScoreRequest
from kernelwright.store import Store

ROOT = Path(__file__).parents[2]
SOFTMAX = "kernelwright/level1/softmax"
TOKEN = "a-token-of-this-test-0123456789"
QUICK = """
baselines = ["eager"]

[measurement]
looks = [12]
window_ms = 0.5
pool_bytes = "16MiB"
noise_bound = 0.3
"""  # tests run on busy machines, where a control strays far
RIGHT = """
import torch
from torch import nn

from kernelwright.inline import cpp

lib = cpp('''
#include <cmath>
#include <cstdint>
extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r++, x += columns, y += columns) {
    float top = x[0];
    for (int64_t c = 1; c < columns; c++) top = x[c] > top ? x[c] : top;
    float parts[8] = {};
    for (int64_t c = 0; c < columns; c++) parts[c % 8] += y[c] = std::exp(x[c] - top);
    float sum = 0;
    for (float part : parts) sum += part;
    for (int64_t c = 0; c < columns; c++) y[c] /= sum;
  }
}
''')


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
"""
WRONG = RIGHT.replace("std::exp(x[c] - top)", "std::exp(x[c])")  # overflows on the large inputs of its domain

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("g++") is None or shutil.which("bwrap") is None, reason="needs g++ and bubblewrap"),
]


@pytest.fixture
def server(tmp_path, make_cache):
    make_cache(tmp_path / "cache")
    (tmp_path / "kernelwright.toml").write_text(QUICK)
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    environment = kept | {
        "PYTHONPATH": str(ROOT),
        "KERNELWRIGHT_STORE": str(tmp_path / "store.db"),
        "KERNELWRIGHT_CACHE_DIR": str(tmp_path / "cache"),
        "KERNELWRIGHT_DEVICE": "none",
    }
    words = ["rl", "serve", "--port", "0", "--json", "--token-file", "tokens", "--problems", SOFTMAX]
    with subprocess.Popen(
        [sys.executable, "-m", "kernelwright.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
    ) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)["url"]
        finally:
            process.kill()


def test_a_server_scores_a_right_and_a_wrong_kernel_and_ends_on_a_signal(server, tmp_path):
    process, url = server
    assert httpx2.get(f"{url}/v1/problems", trust_env=False).status_code == 401
    with RemoteScorer(url, token=TOKEN) as scorer:
        right, wrong = scorer.score([ScoreRequest(problem=SOFTMAX, source=source) for source in (RIGHT, WRONG)])
        (again,) = scorer.score([ScoreRequest(problem=SOFTMAX, source=RIGHT)])
    assert (right.status, right.passed, right.again) == (Status.PASSED, True, False), right
    assert right.speedup is not None
    assert right.reward is not None
    assert right.reward >= 0.1
    assert (wrong.passed, wrong.reward, wrong.status) == (False, 0.0, Status.INCORRECT_NUMERICAL), wrong
    assert "status: INCORRECT_NUMERICAL" in wrong.feedback
    assert (again.again, again.reward) == (True, right.reward)

    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out == ""
    assert TOKEN not in err
    with Store.open(tmp_path / "store.db", readonly=True) as store:
        (run,) = store.runs()
        assert (run.status, run.config.recipe, run.config.problems) == ("finished", "rl", (SOFTMAX,))
        assert len(store.evaluations(run_id=run.id)) == 2
