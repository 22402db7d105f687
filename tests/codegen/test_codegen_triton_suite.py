"""The Triton emitter and TorchInductor's Triton on the built-in problems, in the interpreter and in the documents."""

from __future__ import annotations

import json

import pytest
import torch
from test_codegen_triton import PROBLEMS, run
from torch.utils._triton import has_triton

from kernelwright.codegen import MOST_OPERATORS, CodegenError, Graph, triton_seed
from kernelwright.codegen._capture import capture_entry
from kernelwright.codegen._inductor_triton import inductor_triton_entry

NAMES = sorted(PROBLEMS)
NO_SEED = "libraries do all of the"


@pytest.fixture(scope="module")
def results(taken):
    return run("codegen_triton_cases.py", *taken("name"))


@pytest.mark.matrix
@pytest.mark.parametrize("name", NAMES)
def test_triton_candidate(results, name):
    assert results[name] == "ok", results[name]


def seed_of(name):
    """What a problem's seed and its checks need; or why it has no seed."""
    problem = PROBLEMS[name]
    small = problem.meta.variants_for("interpreter")
    payload = {"source": problem.source, "variants": [*problem.meta.variants_for("gpu"), *small]}
    payload["variant"] = payload["variants"][0]
    graph = Graph.from_json(json.loads(json.dumps(capture_entry(payload))))
    if graph.operators > MOST_OPERATORS:
        return "a long loop"
    try:
        seed = triton_seed(graph, json.loads(json.dumps(inductor_triton_entry(payload))))
    except CodegenError as error:
        return str(error)
    return {"problem": problem.source, "source": seed.source, "variants": list(small)}


@pytest.fixture(scope="module")
def seeds(taken):
    has_triton.cache_clear()  # torch remembers whether Triton works, and what it was told counts for no device
    made = {name: seed_of(name) for name in taken("seeded")}
    given = {name.replace("/", "_"): made[name] for name in made if isinstance(made[name], dict)}
    found = run("codegen_triton_seeds.py", text=json.dumps(given)) if given else {}
    has_triton.cache_clear()
    return {name: found.get(name.replace("/", "_"), made[name]) for name in made}


@pytest.mark.timeout(1500)  # of all problems, in `make test-all`
@pytest.mark.matrix(one_in=40)
@pytest.mark.parametrize("seeded", NAMES)
def test_seed(seeds, seeded):
    """TorchInductor's kernels are right, or are refused because no kernel of theirs does the work."""
    found = seeds[seeded]
    assert found in ("ok", "a long loop") or NO_SEED in found, found


@pytest.fixture(scope="module")
def table(load_script):
    return load_script("scripts/gpu_table.py")


@pytest.mark.timeout(1500)  # of all problems, in `make test-all`
@pytest.mark.matrix(one_in=40)
@pytest.mark.parametrize("listed", NAMES)
def test_a_row_of_the_table_is_what_the_generator_does(table, listed):
    torch.manual_seed(0)
    row = table.row_of(PROBLEMS[listed])
    assert row.holds
    assert str(row) in table.PAGE.read_text().splitlines(), f"python scripts/gpu_table.py writes it anew: {row}"


def test_a_row_without_the_compilers_kernels_may_launch_and_move_no_more(table):
    ours = {"name": "x", "compiler": (2, 100), "seed": False, "why": "", "kernels": 1}
    assert table.Row(**ours, launches=2, bytes=100).holds
    assert not table.Row(**ours, launches=3, bytes=50).holds
    assert not table.Row(**ours, launches=1, bytes=101).holds


def test_the_table_has_every_problem(table):
    lines = table.PAGE.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| level")]
    assert [row.split("|")[1].strip() for row in rows] == NAMES
    assert table.summary(rows) in lines
