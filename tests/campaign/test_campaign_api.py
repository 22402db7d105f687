"""The Python interface over a fake referee."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from campaign_fakes import FakeReferee, make_problem, register_scripted_roles

import kernelwright
from kernelwright import agents, campaign
from kernelwright.campaign import evaluate
from kernelwright.campaign.api import load_drop_in, optimize, read_candidate
from kernelwright.cli import interactive
from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.files import write_for_user
from kernelwright.records import InputGenerator, InputPattern, Stage, Timing
from kernelwright.store import Store

DROP_IN = """
class Kernel:
    def __init__(self, model, names):
        self.model, self.names = model, names


def from_reference(model, names=None):
    return Kernel(model, names)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    register_scripted_roles()
    return Settings(
        store=tmp_path / "store.db", cache_dir=tmp_path / "cache", coder="scripted", judge="scripted", rounds=2
    )


def test_the_names_are_at_the_top():
    assert kernelwright.evaluate is evaluate
    assert kernelwright.optimize is interactive.optimize


@pytest.mark.parametrize("where", ["nowhere", "terminal", "notebook", "told"])
def test_optimize_says_what_it_does_where_somebody_looks(settings, monkeypatch, capsys, where):
    import torch

    monkeypatch.setattr(sys.stderr, "isatty", lambda: where == "terminal", raising=False)
    monkeypatch.setenv("TERM", "dumb")
    notebook = SimpleNamespace(get_ipython=lambda: object() if where == "notebook" else None)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    events, referee = [], FakeReferee({"v0": 0.5, "v1": 0.5})
    more = {"tell": events.append} if where == "told" else {}
    with pytest.warns(UserWarning, match="no faster kernel") as warned:
        kernelwright.optimize(
            torch.nn.ReLU(), (torch.randn(4),), settings=settings, open_referee=lambda _: referee, **more
        )
    assert warned[0].filename == __file__
    said = capsys.readouterr().err
    assert referee.linted == [], "nobody wrote the file of a module"
    assert ("round 1/2: PASSED" in said) == (where in ("terminal", "notebook"))
    assert (len(events) > 3) == (where == "told")


@pytest.mark.parametrize("room", [agents, campaign])
def test_a_face_is_sorted_and_whole(room):
    assert list(room.__all__) == sorted(room.__all__, key=lambda name: (not name.isupper(), name))  # constants first
    assert all(hasattr(room, name) for name in room.__all__)


def test_evaluate_checks_on_the_archive_of_the_store(settings):
    problem = make_problem()
    ties = InputGenerator(inputs={"x": InputPattern(kind="ties")})
    referee = FakeReferee()
    with Store.open(settings.store) as store:
        store.add_generators(problem, [ties], author="offline", evidence={})
        evaluate("v1\n", problem, settings=settings, store=store, open_referee=lambda _: referee)
        assert referee.archives == {problem.name: (ties,)}
    evaluate("v1\n", problem, settings=settings, open_referee=lambda _: referee)
    assert referee.archives == {problem.name: ()}


def test_evaluate_keeps_its_result_where_it_is_told_to(settings, tmp_path):
    problem = make_problem()
    with Store.open(settings.store) as store:
        evaluation = evaluate(
            "v1\nrest\n",
            problem,
            settings=settings,
            confirm=True,
            store=store,
            open_referee=lambda _: FakeReferee({"v1": 2.0}),
        )
        assert evaluation.verdict.stage is Stage.CONFIRMED
        stored = store.evaluations(problem=problem.id)
        assert [entry.candidate.author for entry in stored] == ["user"]
        assert stored[0].run_id is None


TRITON = "import triton\n\n\n@triton.jit\ndef kernel(x):\n    pass\n"
CUDA = "from kernelwright.inline import cuda\n\nlib = cuda('__global__ void f() {}')\n"


@pytest.mark.parametrize(
    ("source", "given", "backend"),
    [
        pytest.param(TRITON, {}, "triton", id="Triton"),
        pytest.param(CUDA, {}, "cuda", id="CUDA"),
        pytest.param("v1\nnothing\n", {}, "cpp", id="no kernel at all"),
        pytest.param(TRITON, {"backend": "cpp"}, "cpp", id="said otherwise"),
    ],
)
def test_a_file_is_judged_in_the_language_of_its_kernels(settings, source, given, backend):
    evaluation = evaluate(source, make_problem(), settings=settings, open_referee=lambda _: FakeReferee(), **given)
    assert evaluation.candidate.backend == backend


def test_a_setting_says_the_language_as_well(settings):
    settings = settings.with_values(backend="cuda")
    evaluation = evaluate(TRITON, make_problem(), settings=settings, open_referee=lambda _: FakeReferee())
    assert evaluation.candidate.backend == "cuda"


def test_a_candidate_from_a_file_keeps_its_exact_bytes(tmp_path):
    path = tmp_path / "candidate.py"
    path.write_text("x = 1  \n\n\n")
    problem = make_problem()
    assert read_candidate(path, problem).source == "x = 1  \n\n\n"
    assert read_candidate(str(path), problem).sha256 == read_candidate("x = 1  \n\n\n", problem).sha256
    assert read_candidate(path, problem, knobs={"A": 1}).sha256 != read_candidate(path, problem).sha256
    with pytest.raises(UsageError, match="no candidate file"):
        read_candidate(tmp_path / "none.py", problem)


def test_a_byte_order_mark_is_no_part_of_a_candidate(tmp_path):
    path = tmp_path / "candidate.py"
    path.write_text("x = 1\n", encoding="utf-8-sig")
    assert read_candidate(path, make_problem()).source == "x = 1\n"


def test_optimize_returns_the_module_itself_where_nothing_is_faster(settings):
    import torch

    model = torch.nn.ReLU()
    slow = FakeReferee({"v0": 0.9, "v1": 0.8})
    with pytest.warns(UserWarning, match="no faster kernel for ReLU"):
        found = optimize(model, (torch.randn(4),), settings=settings, open_referee=lambda _: slow)
    assert found is model


def test_the_warning_says_why_a_measured_speedup_is_not_claimed(settings, monkeypatch):
    import torch

    said = "1.15x measured; two processes of the same code differed"
    monkeypatch.setattr(Timing, "denial", lambda timing, baseline: f"{said} ({baseline})")
    even = FakeReferee({"v0": 1.0, "v1": 1.0})
    with pytest.warns(UserWarning, match=r"no faster kernel for ReLU: 1.15x measured; two .* \(eager\)"):
        optimize(torch.nn.ReLU(), (torch.randn(4),), settings=settings, open_referee=lambda _: even)


def test_a_module_of_ones_own_may_be_left_to_libraries_and_a_problem_of_a_suite_not(settings):
    import torch

    opened, asked = [], []

    class Watching(FakeReferee):
        def open(self, problem, **more):
            asked.append(opened[-1].own_kernels_for(problem))
            return super().open(problem, **more)

    def open_referee(chosen):
        opened.append(chosen)
        return Watching({"v0": 0.9, "v1": 0.8})

    with pytest.warns(UserWarning, match="no faster kernel"):
        optimize(torch.nn.ReLU(), (torch.randn(4),), settings=settings, open_referee=open_referee)
    with Store.open(settings.store) as store:
        campaign.Campaign(settings, store, open_referee=open_referee).run([make_problem()])
    assert asked == ["any", "some"]


def test_optimize_refuses_unknown_options(settings):
    with pytest.raises(UsageError, match="roundz"):
        optimize(None, (), settings=settings, roundz=3)  # type: ignore[arg-type]


def test_a_drop_in_is_loaded_from_a_file_that_tracebacks_can_show(tmp_path):
    drop_in = load_drop_in(DROP_IN, "the model", tmp_path, {"a": "b"})  # type: ignore[arg-type]
    assert (drop_in.model, drop_in.names) == ("the model", {"a": "b"})
    files = list((tmp_path / "drop-ins").iterdir())
    assert [path.read_text() for path in files] == [DROP_IN]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "new" / "file.py"
    write_for_user(target, "first")
    write_for_user(target, "second")
    assert target.read_text() == "second"
    assert [path.name for path in target.parent.iterdir()] == ["file.py"]
    with pytest.raises(UsageError, match="cannot write"):
        write_for_user(target / "below" / "a-file.py", "text")
