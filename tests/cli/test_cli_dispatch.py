"""``kernels export --dispatch`` over a fake referee: which kernels it takes, and what it refuses."""

from __future__ import annotations

import ast

import pytest
from campaign_fakes import FakeReferee

from kernelwright.records import Status

SOFTMAX = "kernelwright/level1/softmax"


@pytest.fixture
def judged(terminal, tmp_path):
    """Judges kernels ``NAME`` by their first line, on a variant; returns their hashes by name."""

    def judge(name, variant=0, *, problem=SOFTMAX, code=0, backend="cpp", flags=("--confirm",)):
        path = tmp_path / f"{name}.py"
        path.write_text(f"{name} = 1\n")
        words = ("evaluate", path, "--problem", problem, "--backend", backend, "--variant", variant, *flags)
        return terminal.json(*words, code=code)["candidate"][:12]

    terminal.referee = FakeReferee({"a = 1": 2.0, "b = 1": 1.4, "c = 1": 0.7, "d = 1": 3.0})
    return judge


def exported(terminal, *words, name="out.py", code=0):
    return terminal.json("kernels", "export", *words, "--dispatch", "-o", name, code=code)


def test_a_problem_stands_for_the_winners_of_its_variants(terminal, judged, tmp_path):
    a, b, c = judged("a", 0), judged("b", 1), judged("c", 2)
    judged("b", 0)
    data = exported(terminal, "softmax")
    assert data["problem"] == SOFTMAX
    served = [(route["variant"], route["candidate"] and route["candidate"][:12]) for route in data["routes"]]
    assert served == [(0, a), (1, b), (2, None), (3, b)]
    assert data["routes"][1]["inputs"] == ["x float32[130, 1025]"]
    assert data["routes"][1]["timing"]["speedup"]["eager"]["median"] == 1.4
    header = ast.get_docstring(ast.parse((tmp_path / "out.py").read_text()))
    assert f"({a}): 2.000x [1.960, 2.040], confirmed, measured here" in header
    assert f"the best kernel, {c}, is slower" in header
    assert data["warnings"] == [f"kernel {c} is not in the file: it is the fastest on no shape"]
    text = terminal("kernels", "export", "softmax", "--dispatch", "-o", "text.py").stdout
    assert "1: ROWS=130,COLUMNS=1025" in text
    assert "the reference" in text


def test_kernels_by_hash_and_problems_go_together(terminal, judged):
    a, b = judged("a", 0), judged("b", 1)
    d = judged("d", 1)
    assert {r["candidate"][:12] for r in exported(terminal, a, b)["routes"]} == {a, b}
    assert {r["candidate"][:12] for r in exported(terminal, a, "softmax@1", name="more.py")["routes"]} == {a, d}
    assert {r["candidate"][:12] for r in exported(terminal, "softmax@1", name="one.py")["routes"]} == {d}


def test_unconfirmed_kernels_are_warned_of(terminal, judged, tmp_path):
    a = judged("a", 0, flags=())
    result = terminal("kernels", "export", a, "--dispatch", "-o", "out.py")
    assert f"warning: kernel {a} was timed once and not confirmed" in result.stderr
    assert "not confirmed" in (tmp_path / "out.py").read_text()
    b = judged("b", 1, flags=("--no-time",))
    assert "was never timed" in terminal("kernels", "export", b, "--dispatch", "-o", "untimed.py").stderr


def test_what_cannot_be_one_file(terminal, judged):
    a, other = judged("a", 0), judged("d", problem="level1/gelu")
    triton = judged("b", backend="triton", flags=("--no-time",))
    terminal.referee.statuses = {"c = 1 confirmed": Status.QUARANTINED}
    refused = judged("c", code=1)
    judged("c", 1, flags=())
    for words, message in (
        ((), "which kernels?"),
        (("layer_norm",), "no kernel of kernelwright/level1/layer_norm was timed"),
        ((a, other), "of several problems: kernelwright/level1/gelu, kernelwright/level1/softmax"),
        ((a, triton), "in several languages: cpp, triton"),
        ((a, "--backend", "cuda"), "which kernels?"),
        ((a, refused), f"kernel {refused} was refused: it is wrong"),
        (("ffffffffff",), "no kernel 'ffffffffff'"),
    ):
        result = terminal("kernels", "export", *words, "--dispatch", "-o", "none.py", code=2)
        assert message in result.stderr, result.stderr
        assert "Traceback" not in result.stderr
    assert exported(terminal, a, triton, "--backend", "cpp")["routes"][0]["candidate"][:12] == a
    for words in ((), (a, other)):
        assert "give the hash of one kernel" in terminal("kernels", "export", *words, "-o", "x.py", code=2).stderr
    assert "exists" in terminal("kernels", "export", a, "--dispatch", "-o", "out.py", code=2).stderr


def test_kernels_of_an_earlier_text_of_the_problem_are_left_out(terminal, judged, tmp_path, problem_file):
    a = judged("a", problem="plus_one.py")
    problem_file.write_text(problem_file.read_text().replace("x + 1", "x + 2"))
    b = judged("b", problem="plus_one.py")
    result = terminal("kernels", "export", a, b, "--dispatch", "-o", "out.py", code=2)
    assert f"kernel {a} never passed on the machine where the others were measured" in result.stderr
