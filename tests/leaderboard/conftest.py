"""A world to record in, and browsers over it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from leaderboard_browser import Browser
from leaderboard_world import World, make_app


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def browse(world):
    """Opens browsers over the world's leaderboard; options are those of ``create_app``."""
    opened = []

    def start(base="http://localhost", **options):
        opened.append(Browser(make_app(world, **options), base))
        return opened[-1]

    yield start
    for browser in opened:
        browser.close()


@pytest.fixture
def browser(browse):
    return browse()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    """Makes worlds with browsers that last for a module; its tests only look at them."""
    opened = []

    def start(fill=lambda world: None, **options):
        world = World(tmp_path_factory.mktemp("lasting"))
        fill(world)
        opened.append((Browser(make_app(world, **options)), world))
        return opened[-1][0]

    yield start
    for browser, world in opened:
        browser.close()
        world.store.close()
