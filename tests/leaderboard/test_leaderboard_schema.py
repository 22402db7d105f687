"""The site's own description of itself, and requests made of it by the thousand: none is a fault of ours."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.errors import Unsatisfiable
from leaderboard_browser import Browser
from leaderboard_world import World, fill, make_app

from kernelwright.leaderboard._access import Access
from kernelwright.submissions import Spool, SpoolLimits, Tokens

pytestmark = pytest.mark.browser
EXAMPLES = 10  # of each operation
LIMITS = SpoolLimits(per_hour=100_000, pending=100_000)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site with something of everything, which takes submissions, and what is to be found there."""
    folder = tmp_path_factory.mktemp("schema")
    world = World(folder)
    found = fill(world, lambda field: f"{field} <&>")
    tokens = Tokens(folder / "tokens.json")
    secret = tokens.create("ada").secret
    spool = Spool(folder / "spool", LIMITS)
    submission = spool.put(problem_id=found.problem.id, source="x = 1\n", author="ada")
    app = make_app(world, access=Access(tokens=tokens), spool=spool, poll_s=0.001)
    browser = Browser(app)
    use = world.store.uses(found.run)[0]
    there = {
        "problem": found.problem.id, "sha": found.child.sha, "evaluation": found.child.id, "run": found.run,
        "finished": found.other_run, "call": use.call_id, "submission": submission.id, "form": "csv",
    }  # fmt: skip
    yield browser, there, secret
    browser.close()
    world.store.close()


def test_no_request_that_the_description_allows_or_forbids_is_a_fault_of_ours(site):
    import schemathesis  # comes with the extra "browser"

    browser, there, secret = site
    schema = schemathesis.openapi.from_asgi("/openapi.json", browser.app, headers={"host": "localhost"})
    asker = Asker(browser, there, secret)
    for number, result in enumerate(schema.get_all_operations()):
        for mode in schemathesis.GenerationMode:
            cases = result.ok().as_strategy(generation_mode=mode)
            asked = settings(
                max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
            )(seed(number)(given(case=cases)(lambda case: asker(case))))
            try:
                asked()
            except Unsatisfiable:  # it has nothing that could be wrong
                assert mode is schemathesis.GenerationMode.NEGATIVE
    described = {f"{m.upper()} {path}" for path, methods in browser.app.openapi()["paths"].items() for m in methods}
    assert set(asker.asked) == described
    assert sum(asker.asked.values()) > EXAMPLES / 2 * len(described)
    assert {200, 404, 422} <= set(asker.answers)


class Asker:
    """Asks what was made up; every other time, at something that is there."""

    def __init__(self, browser, there, secret):
        self._browser, self._there, self._secret = browser, there, secret
        self.asked: Counter[str] = Counter()
        self.answers: Counter[int] = Counter()

    def __call__(self, case):
        name = f"{case.operation.method.upper()} {case.operation.path}"
        turn = self.asked[name]
        self.asked[name] += 1
        if turn % 2:
            case.path_parameters = {part: self._there[part] for part in re.findall(r"{(\w+)}", case.operation.path)}
            if case.operation.path.endswith("/events"):
                case.path_parameters["run"] = self._there["finished"]
        sent = case.as_transport_kwargs(base_url="http://localhost")
        headers = {
            "content-type": dict(sent["headers"]).get("Content-Type", ""),
            "accept": ("text/html", "*/*")[turn % 3 == 0],
        }
        if turn % 4:
            headers["authorization"] = f"Bearer {self._secret}"
        given = {key: sent[key] for key in ("params", "json", "data", "content") if sent.get(key) is not None}
        if isinstance(given.get("data"), bytes | str):
            given["content"] = given.pop("data")
        answer = self._browser(sent["method"], sent["url"].removeprefix("http://localhost"), headers=headers, **given)
        self.answers[answer.status_code] += 1
        assert answer.status_code < 500, (name, sent, answer.text)
