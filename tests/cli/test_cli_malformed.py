"""A suite full of broken and hostile files: each has one clear line, and the sound ones are looked at all the same."""

from __future__ import annotations

import os

import pytest

GOOD = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(64, 300)]


def get_init_inputs():
    return []
"""
INPUTS = "return [torch.randn(64, 300)]"
FILES = {
    "1_good.py": GOOD,
    "2_syntax.py": "class Model(:\n",
    "3_missing.py": GOOD.replace("def get_inputs", "def inputs"),
    "4_number.py": GOOD.replace(INPUTS, "return 5"),
    "5_text.py": GOOD.replace("return torch.softmax(x, dim=1)", "return 'no tensor'"),
    "6_huge.py": GOOD.replace(INPUTS, "return [torch.zeros(2_500_000_000)]"),  # 10 GB
    "7_same.py": GOOD,
    "8_same.py": GOOD.replace("64", "65"),
    "9_ends.py": GOOD.replace("import torch\n", "import os\nos._exit(0)\n", 1),
    "10_path@x=1.py": GOOD,
    "11_line\nbreak.py": GOOD,
    "12_raises.py": GOOD.replace(INPUTS, f"if Model:\n        raise SystemExit('\\x1b[2Jgone')\n    {INPUTS}"),
    "13_deep.py": GOOD + "X = " + "(" * 3000 + ")" * 3000 + "\n",
    "14_bytes.py": b"\xff\xfe\x00",
}
SAYS = {
    "syntax": "not valid Python",
    "missing": "no function get_inputs()",
    "number": "returned int, not a list",
    "text": "the output is a str where a tensor is expected",
    "huge": "memory",
    "ends": "",
    "raises": "SystemExit",
    "deep": "",
    "bytes": "cannot read",
}


@pytest.fixture
def folder(tmp_path):
    level = tmp_path / "odd" / "level1"
    level.mkdir(parents=True)
    for name, text in FILES.items():
        (level / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    os.symlink("/dev/zero", level / "15_endless.py")
    return tmp_path / "odd"


def test_each_broken_file_has_its_line_and_stops_no_other(terminal, folder):
    where = ("--suite", "odd", "--suite-dir", folder)
    data = terminal.json("problems", "lint", *where, "--set", f"memory_bytes={2 << 30}", code=1)
    found = {report["problem"]: report for report in data["problems"]}
    assert len(found) == len(FILES) + 1, "two files of one name are two problems"
    assert found["odd/level1/good"]["ok"]
    assert sum(identity.startswith(("odd/level1/7_same", "odd/level1/8_same")) for identity in found) == 2
    for name, said in SAYS.items():
        (report,) = (report for identity, report in found.items() if identity.rpartition("/")[2] == name)
        errors = [finding["message"] for finding in report["findings"] if finding["severity"] == "error"]
        assert not report["ok"], name
        assert said in " ".join(errors), name
        assert errors, name
        assert all(message.isprintable() for message in errors), name
    listed = terminal.json("problems", "list", *where, code=1)
    assert len(listed["problems"]) + len(listed["broken"]) == len(found)
    text = terminal("problems", "lint", *where, "--set", f"memory_bytes={2 << 30}", code=1).stdout
    assert "\x1b" not in text
    assert all(f"odd/level1/{name}" in text for name in SAYS)
