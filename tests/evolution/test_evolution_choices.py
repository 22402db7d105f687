"""Who becomes a parent, and which operator is chosen."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kernelwright.errors import UsageError
from kernelwright.evolution import Choice
from kernelwright.evolution._bandit import Arm, Bandit
from kernelwright.evolution._selection import SELECTORS, selector

CHOICES = [Choice(str(i), level) for i, level in enumerate((0.0, 0.1, 0.2, 0.3, 1.0))]


def drawn(name: str, choices=CHOICES, times: int = 400) -> Counter[str]:
    rng = random.Random(1)
    return Counter(selector(name)(choices, rng).sha256 for _ in range(times))


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_every_way_selects_one_of_them_and_the_same_by_the_same_draw(name):
    assert set(drawn(name)) <= {choice.sha256 for choice in CHOICES}
    assert drawn(name) == drawn(name)
    assert selector(name)(CHOICES[:1], random.Random(0)) == CHOICES[0]


def test_best_and_beam_are_greedy():
    assert set(drawn("best")) == {"4"}
    assert drawn("beam") == {"4": 400}
    some = [choice._replace(children=2) if choice.sha256 == "4" else choice for choice in CHOICES]
    assert set(drawn("beam", some)) == {"3"}  # of the three best, who has fewer children


@pytest.mark.parametrize("name", ["sigmoid", "power", "tournament"])
def test_better_ones_are_drawn_more_often(name):
    count = drawn(name)
    assert count["4"] > count["2"] > 0 or name == "tournament"
    assert count["4"] > 2 * count["0"]


@pytest.mark.parametrize("name", ["sigmoid", "power"])
def test_who_has_many_children_is_drawn_less(name):
    some = [choice._replace(children=20) if choice.sha256 == "4" else choice for choice in CHOICES]
    assert drawn(name, some)["4"] < drawn(name)["4"] / 3


def test_curiosity_goes_where_children_found_something():
    some = [choice._replace(children=10, finds=8 if choice.sha256 == "1" else 0) for choice in CHOICES]
    assert drawn("curiosity", some).most_common(1)[0][0] == "1"


def test_sigmoid_does_not_tell_noise_apart():
    alike = [Choice(str(i), 0.0001 * i) for i in range(4)]
    count = drawn("sigmoid", alike, 2000)
    assert min(count.values()) > 350


def test_an_unknown_way_is_refused():
    with pytest.raises(UsageError, match="unknown selection"):
        selector("luck")


# ---------------------------------------------------------------------------------------------------- the bandit

OPERATORS = [Arm("improve"), Arm("tune"), Arm("new")]


def chosen(bandit: Bandit, arms=OPERATORS, times: int = 300) -> Counter[Arm]:
    rng = random.Random(2)
    return Counter(bandit.choose(arms, rng) for _ in range(times))


def test_it_begins_by_the_weights():
    count = chosen(Bandit({"improve": 8.0, "tune": 2.0, "new": 0.0}))
    assert count[Arm("improve")] > 2 * count[Arm("tune")] > 0
    assert count[Arm("new")] == 0


def test_it_goes_where_the_gain_is():
    bandit = Bandit({"improve": 5.0, "tune": 1.0, "new": 1.0})
    for _ in range(10):
        bandit.learn(Arm("improve"), gain=0.0, cost_usd=0.0, device_s=1.0)
        bandit.learn(Arm("tune"), gain=0.1, cost_usd=0.0, device_s=1.0)
    assert chosen(bandit).most_common(1)[0][0] == Arm("tune")


def test_the_same_gain_for_less_money_is_worth_more():
    cheap, dear = Arm("improve", "small"), Arm("improve", "large")
    bandit = Bandit({"improve": 1.0})
    for _ in range(10):
        bandit.learn(dear, gain=0.05, cost_usd=0.50, device_s=1.0)
        bandit.learn(cheap, gain=0.05, cost_usd=0.01, device_s=1.0)
    assert chosen(bandit, [dear, cheap]).most_common(1)[0][0] == cheap
    for _ in range(10):
        bandit.learn(dear, gain=0.5, cost_usd=0.50, device_s=1.0)
    assert chosen(bandit, [dear, cheap]).most_common(1)[0][0] == dear


def test_the_same_gain_in_less_of_the_referees_time_is_worth_more():
    bandit = Bandit({"improve": 1.0, "cross": 1.0})
    for _ in range(10):
        bandit.learn(Arm("improve"), gain=0.05, cost_usd=0.0, device_s=8.0)
        bandit.learn(Arm("cross"), gain=0.05, cost_usd=0.0, device_s=1.0)
    assert chosen(bandit, [Arm("improve"), Arm("cross")]).most_common(1)[0][0] == Arm("cross")


def test_what_stopped_paying_is_left():
    bandit = Bandit({"improve": 1.0, "tune": 1.0})
    for _ in range(10):
        bandit.learn(Arm("tune"), gain=0.2, cost_usd=0.0, device_s=1.0)
    for _ in range(60):
        bandit.learn(Arm("tune"), gain=0.0, cost_usd=0.0, device_s=1.0)
        bandit.learn(Arm("improve"), gain=0.05, cost_usd=0.0, device_s=1.0)
    assert chosen(bandit, [Arm("improve"), Arm("tune")]).most_common(1)[0][0] == Arm("improve")


def test_it_only_chooses_what_is_open():
    bandit = Bandit({"improve": 1.0})
    bandit.learn(Arm("improve"), gain=1.0, cost_usd=0.0, device_s=1.0)
    assert set(chosen(bandit, [Arm("cross")])) == {Arm("cross")}
