import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

CAMPAIGN = Path(__file__).parents[1] / "campaign"
sys.path.insert(0, str(CAMPAIGN))

from campaign_fakes import FakeReferee, register_scripted_roles  # noqa: E402

import kernelwright.evaluator  # noqa: E402
from kernelwright.cli import cli  # noqa: E402


class Terminal:
    """Runs commands in this process over a fake referee and a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store.db"
        self.referee = FakeReferee({"v0": 1.1, "v1": 2.0, "v2": 1.5})

    def __call__(self, *words, code: int | None = 0, env=None):
        result = CliRunner().invoke(cli, [str(word) for word in words], env=env)
        if code is not None:
            assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
        return result

    def json(self, *words, code: int | None = 0):
        """The one object on standard output."""
        lines = self(*words, "--json", code=code).stdout.splitlines()
        assert len(lines) == 1
        return json.loads(lines[0])

    def optimize(self, *words, code: int | None = 0):
        return self("optimize", *words, "--coder", "scripted", "--judge", "scripted", "--rounds", "3", code=code)


@pytest.fixture
def terminal(tmp_path, monkeypatch):
    register_scripted_roles()
    for name in ("CONFIG", "STORE", "ROUNDS", "DEBUG"):
        monkeypatch.delenv(f"KERNELWRIGHT_{name}", raising=False)
    monkeypatch.setenv("KERNELWRIGHT_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("KERNELWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    made = Terminal(tmp_path)
    monkeypatch.setitem(vars(kernelwright.evaluator), "Referee", lambda settings: made.referee)
    return made


@pytest.fixture
def problem_file(tmp_path):
    from campaign_fakes import REFERENCE

    path = tmp_path / "plus_one.py"
    path.write_text(REFERENCE)
    return path
