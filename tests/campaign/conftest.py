"""What tests of campaigns share."""

from __future__ import annotations

import pytest

from kernelwright.store import Store


@pytest.fixture
def store(tmp_path):
    """An empty store, at ``store.db``."""
    with Store.open(tmp_path / "store.db") as opened:
        yield opened
