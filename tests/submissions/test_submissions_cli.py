"""The commands: tokens, and submissions over a referee that does nothing real."""

from __future__ import annotations

import json
import os
import signal

import pytest
from click.testing import CliRunner

import kernelwright.evaluator
from kernelwright.cli._submissions import submissions
from kernelwright.cli._tokens import tokens
from kernelwright.errors import MachineError, UsageError
from kernelwright.records import Status
from kernelwright.submissions import Spool, Tokens


class Terminal:
    """Runs commands in this process; gives what they printed, and their exit code."""

    def __call__(self, group, *words, code=0):
        result = CliRunner().invoke(group, [*words], standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        assert (result.return_value or 0) == code, result.output
        return result

    def json(self, group, *words, code=0):
        lines = self(group, *words, "--json", code=code).stdout.splitlines()
        assert len(lines) == 1
        return json.loads(lines[0])


@pytest.fixture
def terminal(settings, monkeypatch, tmp_path, fake):
    for name in ("store", "cache_dir"):
        monkeypatch.setenv(f"KERNELWRIGHT_{name.upper()}", str(getattr(settings, name)))
    monkeypatch.setenv("KERNELWRIGHT_SUITES", str(settings.suite_dirs[0]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(vars(kernelwright.evaluator), "Referee", lambda settings: fake)
    return Terminal()


@pytest.fixture
def board(settings):
    """The spool where the commands look for it."""
    return Spool(settings.store.parent / "submissions")


# -------------------------------------------------------------------------------------------------- tokens


def test_a_secret_is_printed_once_and_by_itself(terminal, settings):
    made = terminal(tokens, "create", "ada", "--scope", "submit", "--scope", "read", "--days", "30")
    secret = made.stdout.strip()
    assert secret.startswith("kw_")
    assert len(made.stdout.splitlines()) == 1
    assert secret not in made.stderr
    assert "ada for read and submit" in made.stderr
    path = settings.store.parent / "tokens.json"
    assert Tokens(path).verify(secret).name == "ada"
    for command in (("list",), ("list", "--json"), ("revoke", "ada"), ("revoke", "ada", "--json")):
        printed = terminal(tokens, *command)
        assert secret not in printed.output
        assert json.loads(path.read_text())["tokens"][0]["sha256"] not in printed.output
    assert Tokens(path).verify(secret) is None
    assert not settings.store.exists()


def test_tokens_as_json(terminal):
    made = terminal.json(tokens, "create", "ada")
    assert (made["name"], made["scopes"], made["expires_at"], made["state"]) == ("ada", ["submit"], None, "active")
    assert made["secret"].startswith("kw_")
    terminal.json(tokens, "create", "bob", "--days", "1")
    listed = terminal.json(tokens, "list")["tokens"]
    assert [(entry["name"], entry["state"]) for entry in listed] == [("ada", "active"), ("bob", "active")]
    assert listed[1]["expires_at"] > listed[1]["created_at"]
    assert not {"secret", "sha256"} & set(listed[0])
    assert terminal.json(tokens, "revoke", "ada")["state"] == "revoked"
    assert terminal.json(tokens, "list")["tokens"][0]["state"] == "revoked"


def test_tokens_for_people(terminal):
    assert "no tokens yet" in terminal(tokens, "list").stdout
    terminal(tokens, "create", "ada")
    shown = terminal(tokens, "list").stdout
    assert "ada" in shown
    assert "never" in shown
    assert terminal(tokens, "revoke", "ada").stdout.strip() == "ada is revoked"
    assert "revoked" in terminal(tokens, "list").stdout
    with pytest.raises(UsageError, match="no token named"):
        terminal(tokens, "revoke", "nobody")


# -------------------------------------------------------------------------------------------------- submissions


def test_what_waits_is_judged(terminal, board, put, settings):
    made = put(board, "v1\n")
    assert terminal.json(submissions, "judge", "--once") == {
        "passed": 1,
        "refused": 0,
        "failed": 0,
        "put_back": 0,
        "waiting": 0,
    }
    assert board.state(made.id).status == "PASSED"
    assert settings.store.exists()
    assert "0 passed" in terminal(submissions, "judge", "--once").stdout


def test_the_exit_code_says_whether_all_passed(terminal, board, put, fake):
    put(board)
    fake.statuses = {"v0": Status.INCORRECT_NUMERICAL}
    shown = terminal(submissions, "judge", "--once", code=1)
    assert "1 did not" in shown.stdout
    assert "INCORRECT_NUMERICAL: it is wrong" in shown.stderr
    put(board, problem_id="no/such/problem")
    assert terminal.json(submissions, "judge", "--once", code=1)["failed"] == 1
    put(board, "v1\n")
    fake.faults = {"plus_one": [MachineError("gone")]}
    assert terminal.json(submissions, "judge", "--once", code=3)["waiting"] == 1


def test_a_limit(terminal, board, put):
    for number in range(3):
        put(board, f"v{number}\n")
    assert terminal.json(submissions, "judge", "--limit", "2")["waiting"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_session_in_flight(terminal, board, put, fake, number):
    made = put(board)
    before = signal.getsignal(number)
    fake.point = lambda name: os.kill(os.getpid(), number) if name == "judging v0 False" else None
    shown = terminal(submissions, "judge", code=130)
    assert "continue with: kernelwright submissions judge" in shown.stderr
    assert [confirm for *_, confirm in fake.judged] == [False]
    assert board.state(made.id).state == "waiting"
    assert signal.getsignal(number) == before
    assert terminal.json(submissions, "judge", "--once")["passed"] == 1


def test_a_second_signal_interrupts(terminal, board, put, fake):
    made = put(board)
    fake.point = lambda name: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)] if "judging" in name else None
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - click makes an Abort of it
        terminal(submissions, "judge")
    assert type(caught.value).__name__ in {"KeyboardInterrupt", "Abort"}
    assert (board.state(made.id).state, board.state(made.id).tries) == ("waiting", 0)


def test_the_list(terminal, board, put, fake):
    assert "no submissions yet" in terminal(submissions, "list").stdout
    made = [put(board, author="ada"), put(board, author="bob", problem_id="no[bold]/such")]
    (board.folder / "incoming" / "README\x1b[2J").write_text("hello")
    terminal(submissions, "judge", "--once", code=1)
    put(board, author="cyd")
    shown = terminal(submissions, "list")
    for text in (*(entry.id for entry in made), "ada", "bob", "cyd", "judged", "waiting", "PASSED", "no[bold]/such"):
        assert text in shown.stdout
    assert "left alone: incoming/README [2J" in shown.stderr
    data = terminal.json(submissions, "list", "--limit", "2")
    assert (data["submissions"][0]["author"], len(data["submissions"])) == ("cyd", 2)
    assert data["waiting"] == 1
    assert "source" not in data["submissions"][0]


def test_one_submission(terminal, board, put):
    made = put(board, "v1\n", note="[red]fast[/red]\nindeed")
    terminal(submissions, "judge", "--once")
    shown = terminal(submissions, "show", made.id.lower()).stdout
    for text in (f"submission {made.id}: judged, PASSED", "by ada", "note: [red]fast[/red] indeed", "evaluation "):
        assert text in shown
    data = terminal.json(submissions, "show", made.id)
    assert (data["id"], data["source"], data["state"]) == (made.id, "v1\n", "judged")
    assert len(data["evaluations"]) == 2
    for unknown in ("0" * 26, "../lock", "x"):
        with pytest.raises(UsageError, match="no submission"):
            terminal(submissions, "show", unknown)


def test_text_of_others_does_not_reach_a_terminal_as_commands(terminal, board, put, fake):
    made = put(board)
    fake.faults = {"plus_one": [MachineError("gone \x07\x1b[2J\x9b")]}
    for command, code in ((("judge", "--once"), 3), (("show", made.id), 0), (("list",), 0)):
        printed = terminal(submissions, *command, code=code).output
        assert "gone" in printed
        assert not {"\x07", "\x1b", "\x9b"} & set(printed)


def test_what_is_finished_and_old_can_be_removed(terminal, board, put, settings):
    old = put(Spool(board.folder, now=lambda: 1_000_000_000.0))
    new = put(board, "v1\n")
    terminal(submissions, "judge", "--once")
    assert "1 finished submission removed" in terminal(submissions, "prune", "--days", "30").stdout
    assert terminal.json(submissions, "prune", "--days", "30") == {"removed": 0}
    assert (board.state(old.id), board.state(new.id).state) == (None, "judged")
