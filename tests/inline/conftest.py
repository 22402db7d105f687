"""Every test of this room builds into a cache of its own."""

from __future__ import annotations

import pytest

from kernelwright.inline import set_product_provider


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    yield cache
    set_product_provider(None)
