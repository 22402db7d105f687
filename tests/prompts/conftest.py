"""What the tests of prompts share."""

from __future__ import annotations

import pytest
from prompts_world import make_world


@pytest.fixture
def world():
    """``world(backend)``: everything that one task's prompts can hold."""
    return make_world
