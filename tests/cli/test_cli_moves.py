"""``kernelwright moves list``: the library as people and programs see it."""

from __future__ import annotations

import pytest
from campaign_fakes import REFERENCE, make_candidate, make_evaluation, make_problem

from kernelwright.records import Status
from kernelwright.store import Store

SOFTMAX = REFERENCE.replace("x + 1", "torch.softmax(x, dim=-1)")


@pytest.fixture
def library(terminal):
    """A move that paid on two problems and failed on a third one, and one in another language."""
    with Store.open(terminal.store) as store:
        for name, source, backend, block, gain in [
            ("plus", REFERENCE, "cpp", 128, 1.3),
            ("soft", SOFTMAX, "cpp", 128, 1.2),
            ("more", REFERENCE, "cpp", 128, None),
            ("plus", REFERENCE, "triton", 256, 1.1),
        ]:
            problem = make_problem(name, source)
            store.record_problem(problem)
            parent = make_candidate(problem, f"{backend} a\n").model_copy(update={"backend": backend})
            child = make_candidate(problem, f"{backend} b\n", parents=(parent.sha256,))
            child = child.model_copy(update={"backend": backend})
            status = Status.PASSED if gain else Status.RUNTIME_ERROR
            action = {"origin": "improve", "schedule": {"BLOCK": block}}
            store.record_evaluation(make_evaluation(parent), action={"schedule": {"BLOCK": 64}})
            made = make_evaluation(child, status=status, rivals={parent.sha256: gain or 1.0})
            store.record_evaluation(made, action=action)
    return terminal


def test_moves_are_listed_with_their_gain_their_places_and_their_failures(library):
    (best, other) = library.json("moves", "list")["moves"]
    assert (best["told"], best["change"], best["backend"]) == ("BLOCK = 128 (was 64)", {"BLOCK": 128}, "cpp")
    assert (best["times"], best["failures"], best["paid"]) == (2, 1, True)
    assert 1.1 < best["gain"]["low"] < best["gain"]["median"] < best["gain"]["high"] < 1.4
    assert [place["problem"].rpartition("/")[2] for place in best["places"]] == ["plus", "soft", "more"]
    assert (other["backend"], other["change"]) == ("triton", {"BLOCK": 256})
    shown = library("moves", "list").stdout
    assert "BLOCK = 128 (was 64)" in shown
    assert f"{best['gain']['median']:.2f}x [{best['gain']['low']:.2f}," in shown
    assert "test/level1/plus, test/level1/soft, test/level1/more" in shown


def test_one_language_and_a_limit(library):
    assert [m["backend"] for m in library.json("moves", "list", "--backend", "triton")["moves"]] == ["triton"]
    assert len(library.json("moves", "list", "--limit", "1")["moves"]) == 1
    assert "1 more: --limit 2" in library("moves", "list", "--limit", "1").stdout


def test_moves_of_problems_like_one_come_with_how_like_they_are(library, problem_file):
    soft = library.folder / "softer.py"
    soft.write_text(SOFTMAX)
    (first, *_) = library.json("moves", "list", "--like", soft)["moves"]
    assert (first["change"], first["closeness"]) == ({"BLOCK": 128}, 0.75)
    product = library.folder / "product.py"
    product.write_text(REFERENCE.replace("x + 1", "x @ x"))
    assert library.json("moves", "list", "--like", product) == {"moves": []}
    assert "no change" in library("moves", "list", "--like", product).stdout
    library("moves", "list", "--like", "nothing/like/it", code=2)


def test_an_empty_store_has_no_moves(terminal):
    assert terminal.json("moves", "list") == {"moves": []}
