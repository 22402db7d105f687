"""Watching a run: ``runs show``, ``runs show --watch``, and metrics over HTTP."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import socket
import urllib.error
import urllib.request
from contextlib import contextmanager, nullcontext

import pytest
from campaign_fakes import make_problem
from rich.console import Console

from kernelwright.campaign import CampaignEvent, live
from kernelwright.campaign.live import AtWorkOn, LiveKeeper, Watcher
from kernelwright.cli import _bench_work, _metrics, _optimize, _watch
from kernelwright.listening import listen
from kernelwright.pool import PoolState, SpoolFolder
from kernelwright.records import RunConfig
from kernelwright.store import Store

PROBLEMS = [make_problem(name) for name in ("one", "two")]
POOL = PoolState("ray", seats=4, busy=3, waiting=7, lost=2, drained=1, answered=9, busy_s=30.0, ready_s=40.0)


class Pool:
    """A pool that only says how it stands."""

    state = POOL


@pytest.fixture
def driven(terminal, monkeypatch):
    """A run of two problems that this process drives; one of them is worked on."""
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    with Store.open(terminal.store) as store:
        run = store.create_run(RunConfig(problems=tuple(problem.id for problem in PROBLEMS)), PROBLEMS)
        with LiveKeeper(store, run, pool=Pool()) as keeper:
            keeper.heed(CampaignEvent("problem-started", PROBLEMS[0].id, {}))
            yield store, run


@pytest.fixture
def pauses(driven, monkeypatch):
    """Between two looks nothing is waited for; at the third pause the run ends."""
    store, run = driven
    made = []

    def pause(seconds):
        made.append(seconds)
        if len(made) == 3:
            store.set_run_status(run, "finished")

    monkeypatch.setattr(_watch, "sleep", pause)
    return made


def test_a_run_that_is_driven_is_shown_with_its_figures(terminal, driven):
    _, run = driven
    text = terminal("runs", "show", run).stdout
    assert f"run {run}: running" in text
    assert f"driven by process {os.getpid()}" in text
    assert "0 of 2 problems done, 0 with a right kernel, 1 worked on, 1 left" in text
    assert "pool ray: 3 of 4 seats busy (75% of the time), 7 jobs wait, 2 seats lost, 1 put aside" in text
    assert "10 verdicts awaited" in text
    assert f"working on {PROBLEMS[0].id} (0 s)" in text
    standing = terminal.json("runs", "show", run)["standing"]
    assert (standing["driven"], standing["left"], standing["pool"]["lost"]) == (True, 1, 2)


def test_a_run_that_ended_is_shown_briefly(terminal, problem_file):
    terminal.optimize(problem_file)
    text = terminal("runs", "show", "last").stdout
    assert "1 of 1 problems done, 1 with a right kernel\n" in text
    assert "of the referee for each right kernel" in text
    assert "driven" not in text
    assert "a minute" not in text


def test_a_run_that_was_left_by_a_killed_process_is_told(terminal, driven):
    store, run = driven
    other = store.create_run(RunConfig(problems=(PROBLEMS[0].id,)), PROBLEMS[:1])
    assert "but no process drives it" in terminal("runs", "show", other).stdout
    assert "but no process drives it" not in terminal("runs", "show", run).stdout


def test_watching_prints_a_line_with_the_time_when_something_changed_until_the_run_ends(terminal, driven, pauses):
    lines = terminal("runs", "show", "last", "--watch").stdout.splitlines()
    assert pauses == [2.0] * 3
    assert len(lines) == 2
    assert re.match(
        r"\d\d:\d\d:\d\d running; 0 of 2 problems done, .*; 3 of 4 seats busy \(75%\); 10 verdicts", lines[0]
    )
    assert re.match(r"\d\d:\d\d:\d\d finished; ", lines[1])


def test_watching_as_json_prints_an_object_a_line_at_each_look(terminal, driven, pauses):
    _, run = driven
    looks = [json.loads(line) for line in terminal("runs", "show", "last", "--watch", "--json").stdout.splitlines()]
    assert [look["status"] for look in looks] == ["running"] * 3 + ["finished"]
    assert {look["run"] for look in looks} == {run}
    assert looks[0]["pool"]["busy_s"] == 30.0
    assert looks[0]["at"] <= looks[-1]["at"]


def test_watching_on_a_terminal_draws_the_figures_again(terminal, driven, pauses, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(_watch, "stdout_console", lambda: Console(file=screen, force_terminal=True, width=100))
    monkeypatch.setenv("TERM", "xterm")
    terminal("runs", "show", "last", "--watch")
    text = screen.getvalue()
    assert text.count("pool ray: 3 of 4 seats busy") >= 4
    assert text.count("\x1b[1A") >= 9  # the cursor goes back to the first line
    assert "finished" in text


def test_ctrl_c_ends_watching_and_not_the_run(terminal, driven, monkeypatch):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(_watch, "sleep", interrupted)
    store, run = driven
    terminal("runs", "show", "last", "--watch", code=0)
    assert store.run_status(run) == "running"


def test_a_hostile_name_does_not_reach_the_terminal(terminal, driven):
    store, run = driven
    problem = make_problem("\x1b[2Jbad[red]")
    with LiveKeeper(store, run) as keeper:
        keeper.heed(CampaignEvent("problem-started", problem.id, {}))
        text = terminal("runs", "show", run).stdout
    assert "[2Jbad[red]" in text
    assert "\x1b" not in text


# ------------------------------------------------------------------------------------------------- metrics


@pytest.fixture
def addresses(monkeypatch):
    """Where metrics were served, in order."""
    told = []
    monkeypatch.setattr(_metrics, "say", lambda text: told.append(re.search(r"http://\S+", text)[0]))
    return told


def asked(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return answer.headers, answer.read().decode()


def samples(text):
    """The samples of an exposition, which is checked: by name and labels."""
    assert text.endswith("\n# EOF\n")
    found, kinds, latest = {}, {}, ""
    for line in text.splitlines()[:-1]:
        if line.startswith("#"):
            mark, latest, rest = line.removeprefix("# ").split(" ", 2)
            assert mark in {"TYPE", "UNIT", "HELP"}
            if mark == "TYPE":
                assert latest not in kinds
                kinds[latest] = rest
            assert mark != "UNIT" or latest.endswith(f"_{rest}")
            continue
        name, labels, value = re.fullmatch(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+)', line).groups()
        assert name == latest + {"counter": "_total", "info": "_info"}.get(kinds[latest], "")
        pairs = tuple(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
        assert (name, pairs) not in found
        found[name, pairs] = float(value)
    return found


def value(found, name, **labels):
    """The value of the sample with that name and these labels, besides others."""
    [only] = [
        value for (known, pairs), value in found.items() if known == name and labels.items() <= dict(pairs).items()
    ]
    return only


@pytest.fixture
def scraped(addresses, monkeypatch):
    """What metrics say at each step of a run that a command drives."""
    answers = []

    def listener(event):
        if addresses:
            answers.append((event.kind, *asked(addresses[-1])))

    for module in (_optimize, _bench_work):
        monkeypatch.setattr(module, "show_progress", lambda: nullcontext(listener))
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    return answers


def test_metrics_are_served_while_a_run_is_driven(terminal, problem_file, scraped, addresses):
    terminal.optimize(problem_file, "--metrics-port", 0)
    run = terminal.json("runs", "list")["runs"][0]["run"]
    kinds = [kind for kind, *_ in scraped]
    assert kinds[0] == "run-started"
    headers = scraped[0][1]
    assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert headers["Server"] == "kernelwright"
    first, last = samples(scraped[0][2]), samples(scraped[-1][2])
    assert value(first, "kernelwright_problems", run=run, state="done") == 0
    assert value(last, "kernelwright_problems", run=run, state="done") == 1
    assert value(last, "kernelwright_run_status", kernelwright_run_status="running") == 1
    assert value(last, "kernelwright_run_status", kernelwright_run_status="finished") == 0
    assert value(last, "kernelwright_verdicts_total", status="PASSED") == 4
    assert value(last, "kernelwright_winners") == 1
    assert value(last, "kernelwright_device_seconds_total") == pytest.approx(0.4)
    assert value(last, "kernelwright_cost_usd_total") == 0
    assert value(samples(scraped[kinds.index("judged")][2]), "kernelwright_problem_seconds") >= 0
    assert str(terminal.folder) not in "".join(text for _, _, text in scraped)
    with pytest.raises(urllib.error.URLError):
        asked(addresses[-1])


def test_metrics_of_a_resumed_run_and_of_a_bench(terminal, problem_file, scraped):
    terminal.optimize(problem_file)
    run = terminal.json("runs", "list")["runs"][0]["run"]
    with Store.open(terminal.store) as store:
        store.set_run_status(run, "paused")
    scraped.clear()
    terminal("resume", run, "--metrics-port", 0)
    assert value(samples(scraped[0][2]), "kernelwright_verdicts_total", run=run, status="PASSED") == 4
    scraped.clear()
    terminal("bench", "run", "some", problem_file, "--coder", "scripted", "--metrics-port", 0)
    assert value(samples(scraped[-1][2]), "kernelwright_problems", state="done") == 1


@contextmanager
def taken():
    with listen("127.0.0.1", 0) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("command", ["optimize", "resume", "bench", "worker"])
def test_a_taken_port_is_an_error_before_anything_begins(command, terminal, problem_file):
    with Store.open(terminal.store) as store:
        run = store.create_run(RunConfig(problems=(PROBLEMS[0].id,)), PROBLEMS[:1])
        store.set_run_status(run, "paused")
    words = {
        "optimize": ["optimize", problem_file, "--coder", "scripted"],
        "resume": ["resume", run],
        "bench": ["bench", "run", "some", problem_file, "--coder", "scripted"],
        "worker": ["worker", "--spool", terminal.folder / "spool", "--until-empty"],
    }
    with taken() as port:
        told = terminal(*words[command], "--metrics-port", port, code=2).stderr
    assert f"cannot listen on 127.0.0.1:{port}" in told
    assert "--metrics-port" in told
    assert [(row["run"], row["status"]) for row in terminal.json("runs", "list")["runs"]] == [(run, "paused")]
    assert terminal.referee.judged == []


def test_metrics_are_only_for_this_machine(addresses):
    with _metrics.serving(0, lambda: "# EOF\n"):
        [address] = addresses
        host, port = re.fullmatch(r"http://(.*):(\d+)/metrics", address).groups()
        assert host == "127.0.0.1"
        for path, name, status in (
            ("/metrics", f"localhost:{port}", 200),
            ("/metrics?x=1", "127.0.0.1", 200),
            ("/metrics", "evil.example.org", 403),
            ("/metrics", "[", 403),
            ("/", "localhost", 404),
        ):
            connection = http.client.HTTPConnection(host, int(port), timeout=10)
            connection.request("GET", path, headers={"Host": name})
            assert connection.getresponse().status == status
            connection.close()
        with socket.create_connection((host, int(port))) as silent:  # does not keep the others waiting
            assert asked(address)[1] == "# EOF\n"
            silent.close()


def test_a_store_that_cannot_be_read_is_told_without_its_path(addresses):
    def page():
        raise OSError("no such file: /home/somebody/store.db")

    with _metrics.serving(0, page), pytest.raises(urllib.error.HTTPError) as refused:
        asked(addresses[0])
    assert refused.value.code == 503
    assert b"somebody" not in refused.value.read()


def test_names_and_pools_are_written_as_the_format_asks(terminal, driven):
    store, run = driven
    name = 'a"b\\c\nd\r\x00e{}="'
    standing = Watcher(store, run).look()
    worked_on = (AtWorkOn(problem=name, since="2026-01-01T00:00:00Z"),)
    standing = standing.model_copy(update={"working_on": worked_on})
    found = samples(_metrics.exposition(_metrics.run_families(standing, {"PASSED": 3})))
    [problem] = [dict(pairs)["problem"] for (known, pairs) in found if known == "kernelwright_problem_seconds"]
    assert problem == 'a\\"b\\\\c\\nd  e{}=\\"'
    assert value(found, "kernelwright_pool_seats", state="busy") == 3
    assert value(found, "kernelwright_pool_seats", state="idle") == 1
    assert value(found, "kernelwright_pool_lost_seats_total") == 2
    assert value(found, "kernelwright_pool_busy_seconds_total") == 30.0
    assert value(found, "kernelwright_awaited", what="verdicts") == 10
    assert not [known for known, _ in found if "eta" in known]


def test_metrics_of_a_spool(tmp_path, addresses):
    spool = SpoolFolder(tmp_path / "spool", create=True)
    with _metrics.worker_metrics(0, spool):
        found = samples(asked(addresses[0])[1])
    assert value(found, "kernelwright_spool_jobs", state="waiting") == 0
    assert value(found, "kernelwright_build_info") == 1
