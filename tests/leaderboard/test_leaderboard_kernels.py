"""A kernel's page: which verdict it shows, what led to it, what differs, and what can be taken away."""

from __future__ import annotations

import csv
import io
import json

import pytest
from leaderboard_browser import Page
from leaderboard_world import REFERENCE, THERE, environment

from kernelwright.leaderboard._highlight import MOST_CHARS, difference, highlight
from kernelwright.plots import Ceiling, Node, Series, histogram, lineage, roofline
from kernelwright.records import Correctness, Finding, Profile, Status, TimingSample, Verdict

KERNEL = """import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + 1
"""


def shown(page: Page) -> str:
    """The evaluation that the page shows, among all of the kernel's."""
    [row] = [element for element in page.all("tr") if element["aria-current"] == "true"]
    return row.text.strip()[:26]


def lines(page: Page, kind: str) -> list[str]:
    """Lines of the difference of one kind: ``add``, ``del`` or ``same``."""
    texts, inside = [], False
    for element in page.elements:
        if element.tag == "tr":
            inside = kind in element["class"].split()
        elif element.tag == "code" and inside:
            texts.append(element.text)
            inside = False
    return texts


# Which verdict


def test_a_kernels_page_shows_the_verdict_by_which_it_stands(world, browser):
    softmax = world.problem()
    timed = world.judge(softmax, low=5.0)
    confirmed = world.judge(softmax, timed.candidate, low=2.0, confirmed=True)
    late = world.judge(softmax, timed.candidate, low=9.0)
    page = browser.page(f"/kernels/{timed.sha}")
    assert shown(page) == confirmed.id
    assert "confirmed" in page.words
    assert "2.10x" in page.words
    asked = browser.page(f"/kernels/{timed.sha}?evaluation={late.id}")
    assert shown(asked) == late.id
    assert "9.10x" in asked.words
    assert {link.rpartition("=")[2] for link in asked.links(f"/kernels/{timed.sha}?evaluation=")} >= {
        timed.id,
        confirmed.id,
        late.id,
    }
    assert [row["evaluation"] for row in browser.rows(f"/kernels/{timed.sha}/evaluations.json")] == [
        late.id,
        confirmed.id,
        timed.id,
    ]


def test_a_refusal_by_the_confirmation_is_what_counts(world, browser):
    softmax = world.problem()
    timed = world.judge(softmax, low=5.0)
    no = world.judge(
        softmax, timed.candidate, status=Status.QUARANTINED, failed_stage="floor", reason="faster than memory allows"
    )
    page = browser.page(f"/kernels/{timed.sha}")
    assert shown(page) == no.id
    assert "faster than memory allows" in page.words
    assert "QUARANTINED" in page.words


def test_of_several_machines_the_one_with_a_decision_is_shown(world, browser):
    softmax = world.problem()
    there = world.judge(softmax, environment=THERE, low=9.0)
    here = world.judge(softmax, there.candidate, low=2.0, confirmed=True)
    world.judge(softmax, there.candidate, environment=environment("a third cpu"), low=8.0)
    assert shown(browser.page(f"/kernels/{there.sha}")) == here.id


def test_an_evaluation_leads_to_its_kernel(world, browser):
    judged = world.judge(world.problem())
    answer = browser.get(f"/evaluations/{judged.id}")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/kernels/{judged.sha}?evaluation={judged.id}")
    assert browser.get("/evaluations/01NONE").status_code == 404


def test_a_hash_may_be_cut_short_and_must_name_one_kernel(world, browser):
    softmax = world.problem()
    judged, other = world.judge(softmax), world.judge(softmax)
    assert judged.sha[:12] in browser.page(f"/kernels/{judged.sha[:8]}").title
    assert browser.get(f"/kernels/{judged.sha[:5]}").status_code == 422
    assert browser.get(f"/kernels/{'0' * 64}").status_code == 404
    assert browser.get(f"/kernels/{judged.sha}?evaluation={other.id}").status_code == 404
    assert browser.get(f"/kernels/{judged.sha}?evaluation=01NONE").status_code == 404
    assert browser.get(f"/kernels/{judged.sha}?problem=suite/level1/none").status_code == 404


def test_one_kernel_on_two_problems_is_told_apart_by_the_problem(world, browser):
    one, two = world.problem("one"), world.problem("two")
    first = world.judge(one, low=2.0)
    second = world.judge(two, first.candidate.model_copy(update={"problem_id": two.id}), low=3.0)
    for problem, judged in ((one, first), (two, second)):
        assert shown(browser.page(f"/kernels/{first.sha}?problem={problem.id}")) == judged.id
    assert shown(browser.page(f"/kernels/{first.sha}")) == first.id
    assert browser.get(f"/kernels/{first.sha[:10]}").status_code == 404  # cut short, it names two


def test_a_kernel_that_nobody_judged_yet(world, browser):
    softmax = world.problem()
    sha = world.store.record_candidate(world.candidate(softmax, KERNEL))
    page = browser.page(f"/kernels/{sha}")
    assert f"kernelwright kernels verify {sha[:16]}" in page.words
    assert browser.rows(f"/kernels/{sha}/samples.json") == []
    assert browser.get(f"/kernels/{sha}/verdict.json").status_code == 404
    assert browser.get(f"/kernels/{sha}/drop_in.py").status_code == 409
    assert browser.get(f"/kernels/{sha}/source.py").text == KERNEL


# What is known of it


def test_a_page_tells_what_the_referee_saw(world, browser):
    softmax = world.problem()
    correctness = Correctness(
        trials=6, variants=2, check_set="c", max_error=0.5, error_budget=4.0, kernelbench_allclose=False,
        archive="a" * 16, loads={"normal": 0.125, "outliers": 2e9},
    )  # fmt: skip
    world.judge(softmax, candidate := world.candidate(softmax, KERNEL, knobs={"TILE": 32}, note="I tiled it."))
    finding = Finding(rule="odd", effect="informs", where="l. 3", evidence="x")
    judged = world.judge(
        softmax, candidate, confirmed=True, correctness=correctness, sandbox=("bubblewrap", "seccomp"),
        own_kernel_share=0.75, own_kernel_label="hybrid", findings=(finding,), inputs=("x float32[8]",),
        artifacts={"compiler": "warning: unused variable"},
    )  # fmt: skip
    words = browser.page(f"/kernels/{judged.sha}").words
    for text in (
        "I tiled it.", "TILE=32", "6 trials over 2 variants", "75.0% (hybrid)", "bubblewrap", "seccomp", "x float32[8]",
        "warning: unused variable", "odd", "l. 3", "not met", "12.5%", "beyond all bounds", "a" * 16, "g++ 12",
    ):  # fmt: skip
        assert text in words, text
    verdict = Verdict.model_validate(browser.json(f"/kernels/{judged.sha}/verdict.json"))
    assert verdict == world.store.evaluation(judged.id).verdict


def test_a_profile_is_told_with_its_roofline(world, browser):
    metrics = {
        "arithmetic_intensity": 4.0, "gflops": 20.0, "gbytes_per_s": 5.0, "time_memory_ms": 0.25,
        "time_compute_ms": 0.125, "distance_to_roofline": 2.5, "of_my_own": 7.0,
    }  # fmt: skip
    profile = Profile(rung="callgrind", bound="memory", metrics=metrics, notes=("streams its input",))
    judged = world.judge(world.problem(), latency_ms=0.5, profile=profile)
    page = browser.page(f"/kernels/{judged.sha}")
    assert "Limited by memory, according to callgrind" in page.words
    assert "streams its input" in page.words
    roof = next(svg for svg in page.all("svg") if svg["aria-label"] == "Roofline")
    assert "80 GFLOP/s" in roof.text  # 20 GFLOP/s over 0.5 ms, of which 0.125 are at the peak
    assert "10.0 GB/s" in roof.text
    rows = browser.rows(f"/kernels/{judged.sha}/profile.json")
    assert {row["metric"]: row["value"] for row in rows} == metrics
    assert rows[-1] == {"metric": "of_my_own", "value": 7.0, "meaning": ""}
    assert page.row("of_my_own")
    flopless = {name: value for name, value in metrics.items() if name not in ("gflops", "arithmetic_intensity")}
    other = world.judge(world.problem("copy"), latency_ms=0.5, profile=Profile(rung="x", metrics=flopless))
    words = browser.page(f"/kernels/{other.sha}").words
    assert "5.00 GB/s" in words
    assert "10.0 GB/s" in words


def test_samples_are_there_as_they_were_taken(world, browser):
    judged = world.judge(world.problem(), samples=6)
    kept = world.store.samples(judged.id)
    rows = browser.rows(f"/kernels/{judged.sha}/samples.json")
    assert [TimingSample(**row) for row in rows] == list(kept)
    table = browser.get(f"/kernels/{judged.sha}/samples.csv")
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    read = list(csv.DictReader(io.StringIO(table.text)))
    assert [float(row["latency_ms"]) for row in read] == [sample.latency_ms for sample in kept]
    page = browser.page(f"/kernels/{judged.sha}")
    plot = next(svg for svg in page.all("svg") if svg["aria-label"] == "Timing samples")
    assert "candidate (3)" in plot.text
    assert "eager (3)" in plot.text
    assert f"/kernels/{judged.sha}/samples.csv?evaluation={judged.id}" in page.links()


def test_all_verdicts_are_there_as_a_table(world, browser):
    softmax = world.problem()
    judged = world.judge(softmax, low=2.0, baselines=("eager", "compile"))
    world.judge(softmax, judged.candidate, environment=THERE, status=Status.TIMEOUT, reason="too slow")
    world.store.quarantine(judged.id, "a hack")
    no, yes = browser.rows(f"/kernels/{judged.sha}/evaluations.json")
    assert (no["status"], no["reason"], no["latency_ms"]) == ("TIMEOUT", "too slow", None)
    assert (yes["speedup_eager"], yes["speedup_compile_low"], yes["quarantined"]) == (2.1, 2.0, "a hack")


# What can be taken away


@pytest.mark.parametrize("why", ["withdrawn", "failed", "untimed", "passed"])
def test_a_drop_in_module_is_offered_of_what_passed_and_was_not_withdrawn(world, browser, why):
    softmax = world.problem()
    candidate = world.candidate(softmax, KERNEL)
    status = Status.TIMEOUT if why == "failed" else Status.PASSED
    judged = world.judge(softmax, candidate, status=status, low=None if why == "untimed" else 2.0)
    if why == "withdrawn":
        world.store.quarantine(judged.id, "it remembers its inputs")
    offered = why in ("passed", "untimed")
    page = browser.page(f"/kernels/{judged.sha}")
    assert bool(page.links(f"/kernels/{judged.sha}/drop_in.py")) == offered
    answer = browser.get(f"/kernels/{judged.sha}/drop_in.py")
    assert answer.status_code == (200 if offered else 409)
    if offered:
        compile(answer.text, "drop_in.py", "exec")
        assert "from_reference" in answer.text
        assert answer.headers["content-disposition"] == f'attachment; filename="drop_in_{judged.sha[:12]}.py"'
    if why == "withdrawn":
        assert "it remembers its inputs" in page.words
        assert "withdrawn" in page.words


def test_a_source_is_downloaded_byte_for_byte(world, browser):
    source = "# é \u2028\r\nx = 1  \n\tpass"
    softmax = world.problem()
    judged = world.judge(softmax, world.candidate(softmax, source))
    answer = browser.get(f"/kernels/{judged.sha}/source.py")
    assert answer.content == source.encode()
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="kernel_{judged.sha[:12]}.py"'


def test_the_command_that_judges_it_again_names_no_folder(world, browser):
    softmax = world.problem("it's odd")
    judged = world.judge(softmax)
    page = browser.page(f"/kernels/{judged.sha}")
    [command] = [code.text for code in page.all("code") if code["id"] == "verify"]
    assert command.startswith(
        f"kernelwright kernels verify {judged.sha[:16]} -p 'suite/level1/it'\"'\"'s odd' --store "
    )
    assert str(world.path.parent) not in page.source


# Where it came from


def test_a_difference_is_from_the_parent_or_else_from_the_reference(world, browser):
    softmax = world.problem()
    parent = world.judge(softmax, world.candidate(softmax, "one\ntwo\nthree\n"))
    child = world.judge(softmax, world.candidate(softmax, "one\n2\nthree\n", parents=(parent.sha,)))
    page = browser.page(f"/kernels/{child.sha}")
    assert (lines(page, "del"), lines(page, "add")) == (["two"], ["2"])
    assert lines(browser.page(f"/kernels/{parent.sha}"), "add") == ["one", "two", "three"]
    diff = browser.page(f"/kernels/{child.sha}/diff")
    assert [line for line in lines(diff, "del") if line] == [line for line in REFERENCE.splitlines() if line]
    diff = browser.page(f"/kernels/{child.sha}/diff?against={parent.sha[:8]}")
    assert (lines(diff, "del"), lines(diff, "add"), lines(diff, "same")) == (["two"], ["2"], ["one", "three"])


def test_a_difference_from_a_kernel_of_another_problem_and_from_none(world, browser):
    softmax, conv = world.problem("softmax"), world.problem("conv")
    judged, other = world.judge(softmax), world.judge(conv, world.candidate(conv, "quite another\n"))
    assert lines(browser.page(f"/kernels/{judged.sha}/diff?against={other.sha}"), "del") == ["quite another"]
    assert browser.get(f"/kernels/{judged.sha}/diff?against={'0' * 64}").status_code == 404
    assert browser.get(f"/kernels/{judged.sha}/diff?against=parent").status_code == 422
    assert "The sources are the same" in browser.page(f"/kernels/{judged.sha}/diff?against={judged.sha}").words


def test_a_lineage_goes_up_and_down_and_may_be_a_circle(world, browser):
    softmax = world.problem()
    top = world.judge(softmax, world.candidate(softmax, "top\n", operator="new"))
    middle = world.judge(softmax, world.candidate(softmax, "middle\n", parents=(top.sha,), operator="improve"))
    below = world.judge(softmax, world.candidate(softmax, "below\n", parents=(middle.sha,), operator="tune"))
    world.store.record_candidate(world.candidate(softmax, "top\n", parents=(below.sha,)))  # turned back
    unknown = "f" * 64
    world.store.record_candidate(world.candidate(softmax, "middle\n", parents=(unknown,)))
    for judged in (top, middle, below):
        page = browser.page(f"/kernels/{judged.sha}")
        [tree] = [svg for svg in page.all("svg") if svg["aria-label"] == "Lineage"]
        linked = {
            link.partition("?")[0].removeprefix("/kernels/") for link in page.links("/kernels/") if "?problem=" in link
        }
        assert {top.sha, middle.sha, below.sha} <= linked
        current = [rect for rect in page.all("rect") if "node-current" in rect["class"]]
        assert len(current) == 1
        assert judged.sha[:8] in tree.text
    assert "not judged here" in browser.page(f"/kernels/{middle.sha}").words
    assert f"/kernels/{unknown}" not in browser.page(f"/kernels/{middle.sha}").source
    [own] = [svg for svg in page.all("svg") if svg["aria-label"] == "Timing samples"]
    assert own.text
    alone = world.judge(softmax)
    assert "Lineage" not in [svg["aria-label"] for svg in browser.page(f"/kernels/{alone.sha}").all("svg")]


def test_advice_and_replies_that_led_to_a_kernel_are_shown(world, browser):
    softmax = world.problem()
    run, other = world.run(softmax), world.run(softmax)
    parent = world.judge(softmax, run=run, step=1)
    world.note(parent, "vectorise the inner loop", run=run, expected="twice as fast")
    world.note(parent, "of another run", run=other)
    call = world.reply(run, softmax, "Here is <b>my kernel</b>", step=2)
    world.reply(run, softmax, "of an earlier step", step=1)
    world.reply(run, softmax, "what a judge said", step=2, role="judge")
    child = world.judge(softmax, world.candidate(softmax, parents=(parent.sha,)), run=run, step=2)
    world.note(child, "it spills registers", run=run)
    page = browser.page(f"/kernels/{child.sha}")
    for text in ("vectorise the inner loop", "twice as fast", "Here is <b>my kernel</b>", "it spills registers"):
        assert text in page.words, text
    for text in ("of another run", "of an earlier step", "what a judge said"):
        assert text not in page.words, text
    assert f"/runs/{run}/replies/{call}" in page.links()
    assert "some-model" in page.words
    assert browser.get(f"/runs/{run}/replies/{call}").text == "Here is <b>my kernel</b>"


def test_a_kernel_whose_replies_were_pruned_is_shown_without_them(world, browser):
    softmax = world.problem()
    run = world.run(softmax)
    world.store.set_run_status(run, "finished")
    call = world.reply(run, softmax, "Here is my kernel")
    kernel = world.judge(softmax, run=run, step=1)
    world.store.prune("9999", ["calls"])
    assert "Here is my kernel" not in browser.page(f"/kernels/{kernel.sha}").words
    assert "was removed from the store" in browser.get(f"/runs/{run}/replies/{call}").text


def test_a_long_reply_and_a_long_artifact_are_cut_on_the_page(world, browser):
    softmax = world.problem()
    run = world.run(softmax)
    world.reply(run, softmax, "r" * 9_000)
    judged = world.judge(softmax, run=run, step=1, artifacts={"compiler": "c" * 40_000})
    page = browser.page(f"/kernels/{judged.sha}")
    assert "r" * 6_000 in page.source
    assert "r" * 6_001 not in page.source
    assert "c" * 12_000 in page.source
    assert "c" * 12_001 not in page.source


# Drawings, sources in colour, and what takes time


def test_texts_of_drawings_are_texts():
    hostile = '"><b onclick=x>&lt;'
    node = Node("key", hostile, "/kernels/1?problem=a&b", hostile)
    drawings = (
        lineage([[node]], [], hostile),
        histogram([Series(hostile, [1.0, 2.0])], hostile, hostile),
        roofline(1.0, 2.0, Ceiling(10.0, 5.0), hostile),
    )
    for drawing in drawings:
        page = Page(drawing)
        assert {element.tag for element in page.elements} <= {
            "svg", "a", "rect", "text", "line", "title", "polyline", "circle", "path",
        }  # fmt: skip
        assert page.all("svg")[0]["aria-label"] == hostile
        assert not [element for element in page.elements if "onclick" in element.attributes]
    assert [text.text for text in Page(drawings[0]).all("text")] == [hostile, hostile]
    assert Page(drawings[0]).links() == ["/kernels/1?problem=a&b"]
    assert f"{hostile} (2)" in [text.text for text in Page(drawings[1]).all("text")]


def test_a_source_is_coloured_and_a_huge_one_is_plain():
    assert '<span class="k">def</span>' in highlight("def f(): ...\n")
    huge = "def f(): ...\n" * (MOST_CHARS // 12)
    assert '<span class="k">' not in highlight(huge)
    assert "def f(): ..." in highlight(huge)


def test_lines_of_nothing_but_blanks_take_no_time_to_speak_of():
    """Some two minutes where each of them is looked at anew from every line before it."""
    text = " \n" * 40_000 + "x = 1\n"
    assert str(highlight(text)).count("\n") >= 40_000


def test_a_difference_of_lines_that_are_all_alike_takes_no_time_to_speak_of():
    """Ten minutes where every line is compared with every other one, over and over."""
    made = difference("x\n" * 4_000, "x\ny\n" * 4_000)
    assert [line.kind for line in made if line.kind != "hunk"].count("add") >= 4_000
    assert difference("x\n" * 100_000, "x\n" * 100_000) == []
    shuffled = "".join(f"{number * 7919 % 30_000 // 8}\n" for number in range(30_000))
    ordered = "".join(f"{number // 8}\n" for number in range(30_000))
    assert {"del", "add"} <= {line.kind for line in difference(ordered, shuffled)}


def test_a_difference_has_numbers_of_both_sides_and_lines_around():
    before = [str(number) for number in range(40)]
    after = [*before[:20], "new", *before[21:]]
    made = difference("\n".join(before), "\n".join(after))
    assert made[0].text == "@@ -17,9 +17,9 @@"
    assert [(line.kind, line.before, line.after, line.text) for line in made[5:7]] == [
        ("del", 21, None, "20"),
        ("add", None, 21, "new"),
    ]
    assert [line.text for line in made if line.kind == "same"] == ["16", "17", "18", "19", "21", "22", "23", "24"]


def test_a_verdict_with_what_no_number_is_can_be_read(world, browser):
    odd = Correctness(
        trials=1, variants=1, check_set="c", max_error=float("inf"), error_budget=4.0, kernelbench_allclose=False,
        loads={"normal": float("nan")},
    )  # fmt: skip
    profile = Profile(rung="x", metrics={"a": float("inf"), "b": float("nan"), "c": -float("inf")})
    judged = world.judge(world.problem(), status=Status.INCORRECT_NUMERICAL, correctness=odd, profile=profile)
    browser.page(f"/kernels/{judged.sha}")
    verdict = browser.json(f"/kernels/{judged.sha}/verdict.json")
    assert verdict["correctness"]["max_error"] in (None, "Infinity", "inf")
    assert [row["value"] for row in browser.rows(f"/kernels/{judged.sha}/profile.json")] == [None, None, None]
    table = browser.get(f"/kernels/{judged.sha}/profile.csv").text
    assert json.dumps(table).count("nan") == 0
