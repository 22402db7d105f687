"""Problems: the list, and each one's page with its ranking, its charts, its archive, and what the lint says."""

from __future__ import annotations

import re

import pytest
from leaderboard_browser import Page
from leaderboard_world import HERE, REFERENCE, THERE

from kernelwright.campaign import load_recipe
from kernelwright.datasets import LintFinding, LintRecords
from kernelwright.records import Profile, Status

SOFTMAX = "/problems/suite/level1/softmax"


def ranked(page: Page) -> list[str]:
    """Hashes of the kernels in the table, in its order."""
    return [link.removeprefix("/kernels/")[:64] for link in page.links("/kernels/", "ranking")]


def listed(page: Page) -> list[str]:
    links = (link.removeprefix("/problems/").partition("?")[0] for link in page.links("/problems/", "problems"))
    return list(dict.fromkeys(links))


# The list


def test_the_list_has_each_problem_with_its_best_kernel(world, browser):
    softmax = world.problem("softmax", category="norm", number=7)
    world.problem("conv", level=2)
    world.judge(softmax, low=9.0)
    best = world.judge(softmax, low=2.0, confirmed=True, author="bob")
    world.judge(softmax, status=Status.TIMEOUT)
    rows = {row["name"]: row for row in browser.rows("/problems.json")}
    assert {key: rows["softmax"][key] for key in ("category", "number", "judged", "author", "candidate", "low")} == {
        "category": "norm",
        "number": 7,
        "judged": 3,
        "author": "bob",
        "candidate": best.sha,
        "low": 2.0,
    }
    assert (rows["conv"]["judged"], rows["conv"]["candidate"], rows["conv"]["level"]) == (0, None, 2)
    page = browser.page("/problems")
    assert listed(page) == ["suite/level1/softmax", "suite/level2/conv"]
    row = page.row("softmax")
    assert {"bob", "eager", "3"} <= set(row)
    assert any("2.10x" in cell and "confirmed" in cell for cell in row) or "confirmed" in " ".join(row)
    assert page.links(f"/kernels/{best.sha}?evaluation={best.id}")


@pytest.fixture(scope="module")
def several(lasting):
    """Three problems, on one of which something stands."""

    def fill(world):
        world.judge(world.problem("conv")), world.problem("mul", category="matmul"), world.problem("add", suite="more")

    return lasting(fill)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["conv", "mul", "add"]),
        ("suite=more", ["add"]),
        ("category=matmul", ["mul"]),
        ("q=MU", ["mul"]),
        ("q=level1/", ["conv", "mul", "add"]),
        ("suite=suite&category=other", ["conv"]),
        ("suite=&category=&q=", ["conv", "mul", "add"]),
        ("q=nothing", []),
    ],
)
def test_the_list_can_be_narrowed(several, query, names):
    browser = several
    page = browser.page(f"/problems?{query}")
    rows = browser.rows(f"/problems.json?{query}")
    assert sorted(row["name"] for row in rows) == sorted(names)
    assert listed(page) == [row["problem"] for row in rows]
    assert [row["problem"] for row in browser.rows(page.links("/problems.json")[0])] == listed(page)
    assert ("no problem fits" in page.words) == (not names)


def test_the_best_of_a_problem_is_of_one_machine(world, browser):
    one, two = world.problem("one"), world.problem("two")
    other = world.problem("other", suite="other")
    for problem in (one, two):
        world.judge(problem)
    there = world.judge(other, low=1.5, environment=THERE)
    more = world.problem("more", suite="other")
    world.judge(more, low=1.5, environment=THERE)
    world.judge(other, low=9.0)  # on the machine on which the first suite is
    rows = {row["name"]: row for row in browser.rows("/problems.json")}
    assert rows["other"]["candidate"] == there.sha
    assert rows["one"]["candidate"] is not None


# A problem's page


def test_a_ranking_has_confirmed_kernels_first_then_the_greater_lower_bound(world, browser):
    softmax = world.problem()
    run = world.run(softmax, recipe="line")
    slow, fast = world.judge(softmax, low=1.5), world.judge(softmax, low=4.0, own_kernel_share=0.25, run=run)
    sure = world.judge(softmax, low=1.2, confirmed=True)
    world.store.quarantine(world.judge(softmax, low=8.0).id, "a hack")
    world.judge(softmax, low=7.0, control=True)
    page = browser.page(SOFTMAX)
    assert ranked(page) == [sure.sha, fast.sha, slow.sha]
    rows = browser.rows(page.links(f"{SOFTMAX}/ranking.json")[0])
    assert [(row["rank"], row["candidate"]) for row in rows] == [(1, sure.sha), (2, fast.sha), (3, slow.sha)]
    assert [row["recipe"] for row in rows] == ["", "line", ""]
    cells = next(row for row in page.rows if row and row[0] == "2")
    assert any("4.10x" in cell and "[4.00, 4.20]" in cell for cell in cells)
    assert "25.0%" in cells
    assert "ada line" in cells


def test_a_long_ranking_goes_over_pages(world, browser):
    softmax = world.problem()
    made = [world.judge(softmax, low=1.0 + number / 100, samples=0) for number in range(53)]
    order = [judged.sha for judged in reversed(made)]
    first = browser.page(SOFTMAX)
    assert ranked(first) == order[:50]
    [last] = {link for link in first.links(SOFTMAX) if "page=2" in link}
    second = browser.page(last)
    assert ranked(second) == order[50:]
    assert next(row for row in second.rows if row and row[0] == "51")
    assert ranked(browser.page(f"{SOFTMAX}?page=9")) == []
    rows = browser.rows(f"{SOFTMAX}/ranking.json?limit=20&page=3")
    assert [row["candidate"] for row in rows] == order[40:]
    assert [row["rank"] for row in rows] == list(range(41, 54))


@pytest.mark.parametrize("query", ["page=0", "page=-1", "page=x", "page=100001", "page=1.5", "page=", "view=cube"])
def test_a_page_that_cannot_be(several, query):
    several.page(f"/problems/suite/level1/conv?{query}", status=422)


def test_a_ranking_is_of_one_machine_baseline_and_language(world, browser):
    softmax = world.problem()
    here = world.judge(softmax, low=2.0, baselines=("eager", "compile"))
    there = world.judge(softmax, low=3.0, environment=THERE)
    triton = world.judge(softmax, low=4.0, backend="triton")
    asked = {
        f"environment={here_id(world, here)}": here,
        f"environment={THERE.id}": there,
        "backend=triton": triton,
        "baseline=compile": here,
    }
    for query, judged in asked.items():
        assert ranked(browser.page(f"{SOFTMAX}?{query}")) == [judged.sha], query
        assert [row["candidate"] for row in browser.rows(f"{SOFTMAX}/ranking.json?{query}")] == [judged.sha]
    for query in ("baseline=none", "environment=none", f"environment={THERE.id}&backend=triton"):
        assert "has no such ranking" in browser.page(f"{SOFTMAX}?{query}", status=404).words
        assert browser.get(f"{SOFTMAX}/ranking.csv?{query}").status_code == 404
    told = browser.page(f"{SOFTMAX}?environment={THERE.id}")
    assert "another cpu" in told.words


def test_where_nothing_was_asked_for_a_ranking_is_where_most_of_its_suite_stands(world, browser):
    softmax, others = world.problem(), [world.problem(name) for name in ("conv", "mul")]
    kept = {}
    for where in (HERE, THERE):
        kept[where.id] = world.judge(softmax, environment=where)
    first, last = sorted(kept)  # whichever the store names first
    for problem in others:
        world.judge(problem, environment=THERE if THERE.id == last else HERE)
    assert ranked(browser.page(SOFTMAX)) == [kept[last].sha]
    for page in ("/", "/problems", f"/?environment={first}"):
        best = kept[first if "?" in page else last]
        [link] = browser.page(page).links(f"{SOFTMAX}?")
        assert ranked(browser.page(link)) == [best.sha], page
    [link] = browser.page(f"/entrant?author=ada&environment={first}").links(SOFTMAX)
    assert ranked(browser.page(link)) == [kept[first].sha]


def here_id(world, judged) -> str:
    return world.store.evaluation(judged.id).environment.id


def test_charts_follow_fast_p_and_the_best_so_far(world, browser):
    softmax = world.problem()
    for low in (0.9, 1.9, 1.4, 2.9):
        world.judge(softmax, low=low)
    world.judge(softmax, low=1.2, author="bob")  # better than all of his, and no mark for anybody else
    world.judge(softmax, low=1.9, confirmed=True)
    world.judge(softmax, status=Status.COMPILE_ERROR)
    world.judge(softmax, status=Status.COMPILE_ERROR, backend="triton")  # not in this language
    charts = browser.page(SOFTMAX).data
    progress = next(chart for chart in charts if chart["x_label"] == "time")
    by_label = {series["label"]: series["y"] for series in progress["series"]}
    assert by_label == {"confirmed": [None, None, None, 2.0], "in searches": [1.0, 2.0, 3.0, 3.0]}
    assert progress["x"] == sorted(progress["x"])
    fast_p = next(chart for chart in charts if chart["y_label"].startswith("share"))
    points = list(zip(fast_p["x"], fast_p["series"][0]["y"], strict=True))
    assert points[0] == (0.0, pytest.approx(6 / 7))
    for p, share in points[1:]:
        faster = sum(median > p for median in (1.0, 2.0, 1.5, 3.0, 1.3, 2.0))
        # Of two kernels as fast as each other, the curve steps down at each.
        assert share == pytest.approx(faster / 7, abs=1e-4) or (p, share) == (2.0, pytest.approx(2 / 7, abs=1e-4))


def test_a_distribution_has_a_bar_for_every_kernel(world, browser):
    softmax = world.problem()
    for low in (0.5, 1.0, 1.0, 30.0):
        world.judge(softmax, low=low)
    pages = {view: browser.page(f"{SOFTMAX}?view={view}") for view in ("log", "linear")}
    for page in pages.values():
        counts = [int(title.text) for title in page.all("title")[1:] if title.text.isdigit()]
        assert sum(counts) == 4
        assert any("1" in text.text for text in page.all("text"))
    assert pages["log"].links("/problems/", None) != []
    assert any("view=linear" in link for link in pages["log"].links())
    assert any("view=log" in link for link in pages["linear"].links())
    assert re.findall(r'x="[\d.]+" y', pages["log"].source) != re.findall(r'x="[\d.]+" y', pages["linear"].source)


def test_how_candidates_ended_is_counted(world, browser):
    softmax = world.problem()
    for status in (Status.PASSED, Status.TIMEOUT, Status.TIMEOUT, Status.REWARD_HACK):
        world.judge(softmax, status=status)
    world.judge(softmax, status=Status.TIMEOUT, environment=THERE)
    world.judge(softmax, control=True)
    page = browser.page(f"{SOFTMAX}?backend=cpp&environment={here_id(world, world.judge(softmax))}")
    assert page.row("TIMEOUT")[-1] == "2"
    assert page.row("PASSED")[-1] == "2"
    assert page.row("REWARD_HACK")[-1] == "1"


def test_baselines_are_those_that_the_first_kernel_was_timed_beside(world, browser):
    world.judge(world.problem(), low=1.9, latency_ms=0.5, baselines=("eager", "compile"))
    page = browser.page(SOFTMAX)
    assert any("1.00" in cell for cell in page.row("compile"))
    entrant = page.row("ada")
    assert any("2.00x" in cell for cell in entrant)


def test_a_problem_tells_its_note_its_lint_and_its_reference(world, browse, tmp_path):
    source = "# first line  \r\n" + REFERENCE + "# é\n"
    softmax = world.problem(source=source, note="A kernel might leave out the maximum.", backward=True)
    page = browse().page(SOFTMAX)
    assert "A kernel might leave out the maximum." in page.words
    assert "forward and backward" in page.words
    assert "not-linted" in page.words
    assert "def get_init_inputs():" in page.source or "get_init_inputs" in page.words
    download = browse().get(f"{SOFTMAX}/reference.py")
    assert download.content == source.encode()
    assert download.headers["content-disposition"] == 'attachment; filename="reference.py"'
    assert download.headers["content-type"].startswith("text/plain")
    finding = LintFinding(rule="constant-output", severity="error", message="it says <b>no</b>")
    LintRecords(tmp_path / "cache").put(softmax, [finding])
    page = browse().page(SOFTMAX)
    assert "constant-output" in page.words
    assert "it says <b>no</b>" in page.words
    assert "not-linted" not in page.words


def test_another_size_is_a_problem_of_its_own(world, browser):
    declared = world.problem(source=f"N = 8\n{REFERENCE}", variants={"cpu": ({}, {"N": 9})})
    other = declared.at_variant(1)
    world.store.record_problem(other)
    usual = world.judge(declared, inputs=("x float32[8]",))
    changed = world.judge(other, usual.candidate.model_copy(update={"problem_id": other.id}), low=5.0, inputs=("x[9]",))
    assert usual.sha == changed.sha
    assert browser.rows(f"{SOFTMAX}/ranking.json")[0]["evaluation_id"] == usual.id
    [row] = browser.rows(f"{SOFTMAX}@1/ranking.json")
    assert (row["evaluation_id"], row["inputs"]) == (changed.id, "x[9]")
    assert browser.page(f"{SOFTMAX}@1").title == "suite/level1/softmax@1"
    assert {row["problem"] for row in browser.rows("/problems.json")} == {declared.id, other.id}


def test_runs_on_a_problem_are_listed(world, browser):
    softmax, conv = world.problem("softmax"), world.problem("conv")
    mine = world.run(softmax, coder="replay:/home/somebody/tape.jsonl", recipe="line")
    world.judge(softmax, run=mine)
    other = world.run(conv)
    world.judge(conv, run=other)
    page = browser.page(SOFTMAX)
    assert page.links("/runs/") == [f"/runs/{mine}"]
    assert "tape.jsonl" in page.words
    assert "/home/somebody" not in page.source


@pytest.mark.parametrize("end", ["", "/archive.html", "/ranking.json", "/reference.py"])
def test_a_problem_that_is_not_there(several, end):
    assert several.get(f"/problems/suite/level1/none{end}").status_code == 404


# The archive


@pytest.fixture
def searched(world):
    """A run that searched, with three kernels that differ in size and speed."""
    softmax = world.problem()
    search = load_recipe("default").search.model_dump(mode="json")
    run = world.run(softmax, search=search)
    made = [
        world.judge(
            softmax,
            low=low,
            run=run,
            step=step,
            profile=Profile(rung="static", bound=bound, metrics={"vector_bits": bits, "code_bytes": size}),
        )
        for step, (low, bound, bits, size) in enumerate(
            [(1.2, "memory", 128.0, 900.0), (2.0, "compute", 256.0, 9000.0), (3.0, "latency", 512.0, 90.0)]
        )
    ]
    return run, made


def test_an_archive_has_the_elites_of_a_search(world, browser, searched):
    run, made = searched
    page = browser.page(f"{SOFTMAX}/archive.html")
    assert page.links("/runs/") == [f"/runs/{run}"]
    shown = {link.removeprefix("/kernels/")[:64] for link in page.links("/kernels/", "archive")}
    assert made[2].sha in shown
    assert shown <= {judged.sha for judged in made}
    coloured = [cell["class"] for cell in page.all("td", "archive") if cell["class"].startswith("cell-")]
    assert "cell-9" in coloured
    assert "3.10x" in page.words
    assert f"{SOFTMAX}/archive.html" in browser.page(SOFTMAX).source
    assert browser.page(f"{SOFTMAX}/archive.html?run={run}").links("/kernels/", "archive")


def test_a_problem_may_be_named_archive(world, browser, searched):
    named = world.problem("archive")
    judged = world.judge(named)
    here = "/problems/suite/level1/archive"
    assert ranked(browser.page(here)) == [judged.sha]
    assert "no run has searched" in browser.page(f"{here}/archive.html").words
    moved = browser.get(f"{SOFTMAX}/archive?run={searched[0]}")  # where maps were before
    assert (moved.status_code, moved.headers["location"]) == (308, f"{SOFTMAX}/archive.html?run={searched[0]}")


def test_an_archive_that_cannot_be_drawn_says_why(world, browser, searched, monkeypatch):
    run, _ = searched
    softmax = world.store.problem("suite/level1/softmax")
    plain = world.run(softmax)
    world.judge(softmax, run=plain)
    assert "no run has searched" in browser.page(f"{SOFTMAX}/archive.html?run={plain}").words
    broken = world.run(softmax, search={"islands": "none"})
    world.judge(softmax, run=broken)
    assert "cannot be rebuilt" in browser.page(f"{SOFTMAX}/archive.html?run={broken}").words
    monkeypatch.setattr("kernelwright.leaderboard._archive_map._MOST_EVALUATIONS", 2)
    assert f"kernelwright runs archive {run}" in browser.page(f"{SOFTMAX}/archive.html?run={run}").words


def test_an_archive_without_a_kernel_that_passed_is_empty(world, browser):
    softmax = world.problem()
    run = world.run(softmax, search=load_recipe("default").search.model_dump(mode="json"))
    world.judge(softmax, run=run, step=0, status=Status.TIMEOUT)
    assert "nothing passed yet" in browser.page(f"{SOFTMAX}/archive.html").words
