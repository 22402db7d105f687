"""KernelBench's problems from the hub become the folder that its checkout has; the hub itself is played here."""

from __future__ import annotations

import sys

import huggingface_hub
import pyarrow.parquet
import pytest

from kernelwright.datasets import fetch_kernelbench, load_suite
from kernelwright.errors import MachineError, MissingToolError, UsageError

CODE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x + 1

def get_inputs():
    return [torch.randn(8)]

def get_init_inputs():
    return []
"""


def row(number, name, level=1, code=CODE):
    return {"problem_id": number, "name": name, "level": level, "code": code}


def fetch(folder, *rows, asked=None):
    def read(repository, revision):
        if asked is not None:
            asked.append((repository, revision))
        return rows

    return fetch_kernelbench(folder, rows=read, revision="v1")


def test_rows_become_problems_of_their_levels(tmp_path):
    asked = []
    rows = (row(1, "1_Softmax"), row(2, "Max_.py", level=4), row(12, "1_Odd"))
    found = fetch(tmp_path, *rows, asked=asked)
    assert asked == [("ScalingIntelligence/KernelBench", "v1")]
    assert (found.problems, found.refused) == (3, ())
    suite = load_suite("KernelBench", suite_dirs=[found.folder])
    assert [(p.level, p.number, p.name) for p in suite] == [(1, 1, "Softmax"), (1, 12, "1_Odd"), (4, 2, "Max_")]
    assert all(problem.source == CODE for problem in suite)


@pytest.mark.parametrize(
    "wrong",
    [
        row(3, "../../escape"),
        row(3, "a/b"),
        row(3, ""),
        row(3, "x" * 400),
        row(3, "name", level=0),
        row(True, "name"),
        row(3, "name", code=None),
        {"code": CODE},
    ],
    ids=str,
)
def test_a_row_that_is_no_problem_has_a_line_and_stops_nothing(tmp_path, wrong):
    found = fetch(tmp_path / "in", wrong, row(1, "right"))
    assert (found.problems, len(found.refused)) == (1, 1)
    assert [path.name for path in tmp_path.rglob("*.py")] == ["1_right.py"]


def test_files_with_another_text_are_left_alone(tmp_path):
    fetch(tmp_path, row(1, "same"), row(2, "changed"))
    changed = tmp_path / "KernelBench" / "level1" / "2_changed.py"
    changed.write_text("mine")
    found = fetch(tmp_path, row(1, "same"), row(2, "changed"))
    assert found.problems == 1
    assert "another text" in found.refused[0]
    assert changed.read_text() == "mine"


def test_a_dataset_without_problems_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no problem that could be written"):
        fetch(tmp_path)


def test_the_files_of_the_dataset_are_read_as_they_lie_on_the_hub(tmp_path, monkeypatch):
    """A file of parquet for each level, as the hub's client leaves them in its cache."""
    asked = {}

    def snapshot(repository, **options):
        asked.update(options, repository=repository)
        return str(tmp_path / "cache")

    (tmp_path / "cache" / "data").mkdir(parents=True)
    for level, rows in {1: [row(1, "1_Softmax"), row(2, "2_Max_")], 2: [row(7, "7_Fused", level=2)]}.items():
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, tmp_path / "cache" / "data" / f"level_{level}-00000-of-00001.parquet")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    found = fetch_kernelbench(tmp_path, "someone/KernelBench", revision="main")
    assert asked == {
        "repository": "someone/KernelBench",
        "repo_type": "dataset",
        "revision": "main",
        "allow_patterns": ["*.parquet"],
    }
    assert (found.problems, found.refused) == (3, ())
    suite = load_suite("KernelBench", suite_dirs=[found.folder])
    assert [(p.level, p.number, p.source == CODE) for p in suite] == [(1, 1, True), (1, 2, True), (2, 7, True)]


def test_a_hub_that_is_out_of_reach_is_a_fault_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MachineError, match="cannot fetch ScalingIntelligence/KernelBench") as error:
        fetch_kernelbench(tmp_path / "suite")
    assert "--suite-dir" in error.value.hint
    assert not (tmp_path / "suite").exists()


def test_without_the_packages_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingToolError, match="needs the package") as error:
        fetch_kernelbench(tmp_path)
    assert "kernelwright[data]" in error.value.hint
