"""Serving: who may ask, by which name, and what is refused before anything is served; and the real server."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from kernelwright.cli import cli
from kernelwright.errors import UsageError
from kernelwright.leaderboard import ServeOptions
from kernelwright.leaderboard._serve import access_of, serve
from kernelwright.leaderboard._site import Site
from kernelwright.listening import is_loopback
from kernelwright.store import Store
from kernelwright.submissions import Tokens

OWN = {"localhost", "127.0.0.1", "[::1]"}


@pytest.fixture
def options(world, tmp_path):
    """Makes options of a server."""

    def make(**more):
        return ServeOptions(
            **{"store": world.path, "tokens_file": tmp_path / "tokens.json", "cache_dir": tmp_path, **more}
        )

    return make


@pytest.fixture
def tokens(tmp_path):
    return Tokens(tmp_path / "tokens.json")


# Who may ask


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_on_this_machine_everybody_may_read(options, host):
    access = access_of(options(host=host, names=("Board.Example",)))
    assert not access.reading_needs_token
    assert access.hosts == OWN | {"board.example", f"[{host}]" if ":" in host else host}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "2001:db8::1", "board.example.org"])
def test_other_machines_need_to_be_allowed(options, host):
    with pytest.raises(UsageError, match="can be reached from other machines") as refused:
        access_of(options(host=host))
    assert "--public" in refused.value.hint
    assert not is_loopback(host)


def test_a_public_board_needs_a_token_that_can_be_shown(options, tokens):
    public = options(host="192.0.2.1", public=True)
    moment = datetime.now(UTC)
    tokens.create("submitter", ["submit"])
    tokens.create("gone", ["read"])
    tokens.revoke("gone")
    Tokens(tokens.path, now=lambda: moment - timedelta(days=9)).create("old", ["read"], days=2)
    with pytest.raises(UsageError, match="needs a token for reading") as refused:
        access_of(public)
    assert "kernelwright tokens create" in refused.value.hint
    tokens.create("reader", ["read"])
    access = access_of(public)
    assert access.reading_needs_token
    assert access.tokens is not None
    assert access.hosts == OWN | {"192.0.2.1"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_board_at_every_address_needs_a_name(options, tokens, host):
    tokens.create("reader", ["read"])
    with pytest.raises(UsageError, match="needs its host name") as refused:
        access_of(options(host=host, public=True))
    assert "--name" in refused.value.hint
    access = access_of(options(host=host, public=True, names=("board.example.org",)))
    assert access.hosts == OWN | {"board.example.org"}


def test_submissions_need_somebody_who_may_submit(options, tokens, tmp_path):
    taking = options(spool_dir=tmp_path / "spool")
    tokens.create("reader", ["read"])
    with pytest.raises(UsageError, match="there is no token for submitting"):
        access_of(taking)
    tokens.create("submitter", ["submit"])
    assert access_of(taking).tokens is not None
    assert not access_of(taking).reading_needs_token


# The command


@pytest.fixture
def command(world, monkeypatch, tmp_path):
    """Runs ``kernelwright serve`` in this process; it must not come as far as serving."""
    for name in [name for name in os.environ if name.startswith("KERNELWRIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: pytest.fail("it served"))
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return CliRunner().invoke(cli, ["serve", "--store", str(world.path), *words])

    return run


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines", "--public"),
        (["--host", "nowhere.example"], "nowhere.example can be reached from other machines", "--public"),
        (["--public"], "a public board needs a token for reading", "--scope read"),
        (["--accept-submissions"], "there is no token for submitting", "--scope submit"),
        (["--port", "65536"], "is not in the range", ""),
        (["--port", "-1"], "is not in the range", ""),
        (["--port", "http"], "not a valid integer", ""),
        (["--prot", "1"], "No such option", "--port"),
        (["extra"], "unexpected extra argument", ""),
        (["--set", "no_setting=1"], "no_setting", ""),
        (["--config", "none.toml"], "none.toml", ""),
    ],
)
def test_wrong_options_are_told(command, words, says, hint):
    result = command(*words)
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert hint in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_option_is_told_as_json_as_well(command):
    result = command("--host", "0.0.0.0", "--json")
    assert result.exit_code == 2
    told = json.loads(result.stdout)["error"]
    assert (told["type"], told["exit_code"]) == ("UsageError", 2)


def test_a_port_that_is_taken_is_told(command):
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        result = command("--port", str(port))
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in result.stderr
    assert "choose another --port" in result.stderr


def test_an_address_of_another_machine_is_told(command, tokens):
    tokens.create("reader", ["read"])
    result = command("--host", "192.0.2.1", "--public", "--port", "0")
    assert result.exit_code == 2
    assert "cannot listen on 192.0.2.1:0" in result.stderr


def test_a_store_that_is_none_is_told(command, tmp_path):
    (tmp_path / "text.db").write_text("no database" * 100)
    result = command("--store", str(tmp_path / "text.db"))
    assert result.exit_code == 3
    assert "is not a kernelwright store" in result.stderr


def test_a_store_that_is_not_there_yet_is_made(command, tmp_path, monkeypatch):
    served = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: served.append(sockets[0].getsockname()))
    result = command("--store", str(tmp_path / "new" / "store.db"), "--port", "0", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"url": f"http://127.0.0.1:{served[0][1]}/"}
    with Store.open(tmp_path / "new" / "store.db", readonly=True) as store:
        assert store.runs() == []


def test_the_address_is_told_when_it_can_be_asked(command, monkeypatch):
    """A program that reads the address connects at once. The environment is as it was."""
    reached, environment = [], dict(os.environ)
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)

    def connect(self, data, *_):
        host, _, port = data["url"].removeprefix("http://").rstrip("/").partition(":")
        with closing(socket.create_connection((host, int(port)), timeout=5)):
            reached.append(port)

    monkeypatch.setattr("kernelwright.cli._common.Common.show", connect)
    assert command("--port", "0", "--processes", "2").exit_code == 0
    assert reached
    assert dict(os.environ) == environment


# The server


@contextmanager
def server(world, *words, makers=None, program=(sys.executable, "-m", "kernelwright.cli")):
    """The real command in a process of its own; gives the process and its address."""
    chosen = [] if makers is None else ["--processes", str(makers)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    command = [
        *program,
        "serve",
        "--store",
        str(world.path),
        "--port",
        "0",
        "--json",
        *chosen,
        *words,
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=world.path.parent
    )
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)["url"]
    finally:
        process.kill()
        process.communicate()


def ended(process, number):
    """How a server ends when it is told to: its exit code, and what it said."""
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    return process.returncode, said


def test_a_server_is_started_beside_a_folder_of_the_packages_name(world):
    """Where somebody has cloned the project, and works in the folder above."""
    (world.path.parent / "kernelwright" / "leaderboard").mkdir(parents=True)
    program = str(Path(sys.executable).with_name("kernelwright"))
    with server(world, makers=2, program=[program]) as (_, url), httpx2.Client(base_url=url) as client:
        assert client.get("/runs/live").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_server_answers_and_ends_when_it_is_told_to(world, number):
    world.judge(world.problem(), run=world.run(world.problem(), status="running"))
    with server(world) as (process, url):
        with httpx2.Client(base_url=url) as client:
            health = client.get("/healthz")
            assert (health.status_code, health.json()["status"]) == (200, "ok")
            page = client.get("/", headers={"accept": "text/html"})
            assert page.status_code == 200
            assert page.headers["content-security-policy"]
            assert "server" not in page.headers
            assert client.get("/", headers={"host": "evil.example"}).status_code == 421
        code, said = ended(process, number)
    assert code == 0, said
    assert "Traceback" not in said
    assert "Ctrl-C ends it" in said


def test_a_server_ends_while_somebody_listens(world):
    run = world.run(world.problem(), status="running")
    with server(world) as (process, url), httpx2.Client(base_url=url) as client:
        with client.stream("GET", f"/runs/{run}/events") as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: changed"
            code, said = ended(process, signal.SIGINT)
            assert any("changed" in line for line in lines) is False  # and it came to its end untorn
    assert (code, "Traceback" in said) == (0, False), said


def test_the_first_page_is_made_before_the_address_is_told(world, options, monkeypatch):
    """Whoever reads it first waits for no import and no template."""
    made = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    text = Site.text
    monkeypatch.setattr(
        Site, "text", lambda self, request, name, **more: made.append(name) or text(self, request, name, **more)
    )
    serve(options(port=0, processes=0), started=lambda address: made.append(address.partition(":")[0]))
    assert made[-1] == "http"
    assert {"board.html", "problems.html", "runs.html"} <= set(made[:-1])


def test_a_public_server_asks_for_a_token(world, tokens):
    secret = tokens.create("reader", ["read", "submit"]).secret
    with server(world, "--public", "--accept-submissions") as (process, url), httpx2.Client(base_url=url) as client:
        assert client.get("/problems.json").status_code == 401
        head = {"authorization": f"Bearer {secret}"}
        assert client.get("/problems.json", headers=head).status_code == 200
        sent = client.post("/submissions", json={"problem": "a/level1/b", "source": "x = 1\n"}, headers=head)
        assert sent.status_code == 201
        assert client.get(sent.headers["location"], headers=head).status_code == 200
        assert (world.path.parent / "submissions" / "incoming" / f"{sent.json()['id']}.json").is_file()
        too_large = client.post("/submissions", content=(b"x" * 100_000 for _ in range(9)), headers=head)
        assert too_large.status_code == 413
        code, said = ended(process, signal.SIGINT)
    assert (code, "Traceback" in said) == (0, False)


# Processes that make pages


def makers_of(process):
    """The processes that a server started, by number: those that make pages, and what they are forked from."""
    found = {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        found[int(number)] = parent
    ours = {process.pid}
    while more := {number for number, parent in found.items() if parent in ours} - ours:
        ours |= more
    return ours - {process.pid}


def gone(numbers):
    """Whether processes have ended, once they had time to."""
    for _ in range(200):
        if not any(os.path.exists(f"/proc/{number}") for number in numbers):
            return True
        select.select([], [], [], 0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["told to", "killed"])
def test_the_processes_end_with_their_server(world, number):
    world.judge(world.problem())
    with server(world, makers=2) as (process, url):
        assert httpx2.get(url).status_code == 200
        makers = makers_of(process)
        assert len(makers) >= 2
        process.send_signal(number)
        process.communicate(timeout=20)
        assert gone(makers)


def test_others_take_the_place_of_processes_that_were_killed(world):
    world.judge(world.problem())
    with (
        server(world, makers=2) as (process, url),
        httpx2.Client(base_url=url, headers={"accept": "text/html"}) as client,
    ):
        before = client.get("/?sort=own").text
        for turn in range(2):
            for number in makers_of(process):
                with suppress(ProcessLookupError), open(f"/proc/{number}/cmdline", "rb") as file:
                    if b"resource_tracker" not in file.read():
                        os.kill(number, signal.SIGKILL)
            answer = client.get("/?sort=own", params={"x": turn})
            assert answer.status_code == 200
        assert client.get("/?sort=own").text == before


def test_pages_are_the_same_whoever_makes_them(world):
    problem = world.problem()
    run = world.run(problem)
    world.judge(problem, run=run)
    paths = (
        "/",
        "/problems",
        f"/problems/{problem.id}",
        f"/runs/{run}",
        "/board.csv",
        "/none",
        "/openapi.json",
        "/docs/api",
    )
    found = []
    for makers in (0, 2):
        with (
            server(world, makers=makers) as (_, url),
            httpx2.Client(base_url=url, headers={"accept": "text/html"}) as client,
        ):
            answers = [client.get(path) for path in paths]
            volatile = {"date", "content-length"}
            found.append(
                [(a.status_code, a.text, {k: v for k, v in a.headers.items() if k not in volatile}) for a in answers]
            )
    assert found[0] == found[1]
    assert [status for status, *_ in found[0]] == [200, 200, 200, 200, 200, 404, 200, 200]
