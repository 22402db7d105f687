"""``prompts``: what would be sent, and what was."""

from __future__ import annotations

import json

import pytest
from campaign_fakes import make_evaluation

from kernelwright.datasets import find_problem
from kernelwright.prompts import read_exemplar
from kernelwright.records import Candidate
from kernelwright.store import Store

SOFTMAX = "kernelwright/level1/softmax"


@pytest.fixture
def kernels(terminal, tmp_path):
    """Two judged kernels in the store: hashes, and the file of the first one."""
    problem = find_problem(SOFTMAX)
    sources = [read_exemplar("cpp", "softmax").source, "# the child\n"]
    parent = Candidate(problem_id=problem.id, source=sources[0], backend="cpp", note="strips of 64")
    child = Candidate(
        problem_id=problem.id, source=sources[1], backend="cpp", parents=(parent.sha256,), note="strips of 128"
    )
    with Store.open(terminal.store) as store:
        store.record_problem(problem)
        store.record_evaluation(make_evaluation(parent, speedup=1.5))
        store.record_evaluation(make_evaluation(child, speedup=1.8))
    path = tmp_path / "parent.py"
    path.write_text(sources[0])
    return parent.sha256, child.sha256, path


def test_list_has_every_prompt_with_what_it_asks_for(terminal):
    data = terminal.json("prompts", "list")
    assert [entry["name"] for entry in data["prompts"]][:2] == ["coder-cross", "coder-edit"]
    assert all(entry["asks_for"] for entry in data["prompts"])
    assert "judge-repair" in terminal("prompts", "list").stdout


@pytest.mark.parametrize("backend", ["cpp", "triton", "cuda"])
def test_show_prints_what_would_be_sent(terminal, backend):
    data = terminal.json("prompts", "show", "coder-new", "--problem", SOFTMAX, "--backend", backend)
    assert data["text"] == f"[system]\n{data['system']}\n\n[user]\n{data['user']}"
    assert "class ModelNew" in data["system"]
    assert "torch.softmax(x, dim=-1)" in data["user"]
    assert {"cpp": "lib = cpp(", "triton": "@triton.jit", "cuda": "kernel = cuda("}[backend] in data["user"]
    assert terminal("prompts", "show", "coder-new", "-p", SOFTMAX, "--backend", backend).stdout == data["text"] + "\n"


def test_a_kernel_of_the_store_stands_beside_its_measurements(terminal, kernels):
    parent, child, path = kernels
    user = terminal.json("prompts", "show", "judge-optimise", "-p", SOFTMAX, "--kernel", child[:10])["user"]
    assert "speedup over eager: 1.80x" in user
    assert "The kernel to judge (k2)" in user
    assert "k2 | k1 | new | strips of 128 | 1.15x to 1.25x of its parent" in user
    by_file = terminal.json("prompts", "show", "coder-improve", "-p", SOFTMAX, "--kernel", path)["user"]
    assert "speedup over eager: 1.50x" in by_file
    crossed = terminal.json("prompts", "show", "coder-cross", "-p", SOFTMAX, "--kernel", parent, "--kernel", child)
    assert crossed["user"].index("Parent 1 (k1)") < crossed["user"].index("Parent 2 (k2)")


def test_the_verifier_needs_no_evaluation(terminal, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("MINE = 1  # a remark\n")
    user = terminal.json("prompts", "show", "verifier", "-p", SOFTMAX, "--kernel", path)["user"]
    assert "MINE = 1\n" in user
    assert "a remark" not in user
    assert (
        "kernelwright evaluate"
        in terminal("prompts", "show", "judge-repair", "-p", SOFTMAX, "--kernel", path, code=2).stderr
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("coder-nw", "-p", SOFTMAX), "coder-new"),
        (("coder-new",), "--problem"),
        (("coder-edit", "-p", SOFTMAX), "needs 1 kernel, 0 given"),
        (("coder-new", "-p", SOFTMAX, "--kernel", "abcdef"), "leave --kernel out"),
        (("verifier", "-p", SOFTMAX, "--kernel", "nowhere.py"), "no file"),
        (("0" * 64,), "no prompt"),
    ],
)
def test_what_cannot_be_shown_says_why(terminal, words, said):
    assert said in terminal("prompts", "show", *words, code=2).stderr


def test_a_stored_prompt_is_shown_by_its_hash_and_other_content_is_not(terminal):
    with Store.open(terminal.store) as store:
        sent = store.put_blob("[system]\nbe brief\n\n[user]\nwrite", "prompt")
        other = store.put_blob("a reply", "reply")
    assert terminal("prompts", "show", sent).stdout == "[system]\nbe brief\n\n[user]\nwrite\n"
    assert terminal.json("prompts", "show", sent) == {"sha256": sent, "text": "[system]\nbe brief\n\n[user]\nwrite"}
    failed = terminal("prompts", "show", other, "--json", code=2)
    assert json.loads(failed.stdout)["error"]["type"] == "UsageError"
