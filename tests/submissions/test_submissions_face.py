"""What others may use of the room, and what importing it costs."""

from __future__ import annotations

import json
import subprocess
import sys

from kernelwright import submissions
from kernelwright.submissions import places


def test_importing_it_is_cheap():
    program = (
        "import sys, json; import kernelwright.submissions;"
        "heavy = ('torch', 'numpy', 'click', 'sqlite_utils', 'kernelwright.campaign', 'kernelwright.evaluator',"
        "'kernelwright.store', 'kernelwright.datasets', 'kernelwright.agents');"
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_tokens_and_submissions_lie_beside_the_store(settings):
    found = places(settings)
    assert found == (settings.store.parent / "tokens.json", settings.store.parent / "submissions")
    assert (found.tokens_file, found.spool_dir) == found


def test_the_face_is_sorted_and_there():
    def order(name):
        return (0 if name.isupper() else 1 if name[0].isupper() else 2), name

    assert submissions.__all__ == sorted(set(submissions.__all__), key=order)
    assert all(getattr(submissions, name) is not None for name in submissions.__all__)
