"""What tokens cost: every row of the list, tiers, snapshots, the user's own prices, and what stays unknown."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from kernelwright.agents.llm import Price, PriceTable, Usage
from kernelwright.errors import UsageError

LIST = PriceTable.load()
MILLION = 1_000_000

# Model: input, cached input, cache write (None: as other input), output in USD per million tokens, for short prompts.
WANTED = {
    "anthropic:claude-fable-5-1": (10, 0.25, 12.5, 50),
    "anthropic:claude-fable-5": (10, 1, 12.5, 50),
    "anthropic:claude-opus-5-5": (4, 0.20, 5, 20),
    "anthropic:claude-opus-5": (5, 0.5, 6.25, 25),
    "anthropic:claude-opus-4-8": (5, 0.5, 6.25, 25),
    "anthropic:claude-opus-4-7": (5, 0.5, 6.25, 25),
    "anthropic:claude-opus-4-6": (5, 0.5, 6.25, 25),
    "anthropic:claude-opus-4-5": (5, 0.5, 6.25, 25),
    "anthropic:claude-sonnet-5-5": (2, 0.10, 2.5, 10),
    "anthropic:claude-sonnet-5": (2, 0.20, 2.5, 10),
    "anthropic:claude-sonnet-4-6": (3, 0.30, 3.75, 15),
    "anthropic:claude-sonnet-4-5": (3, 0.30, 3.75, 15),
    "anthropic:claude-haiku-5-5": (0.10, 0.01, 0.125, 0.50),
    "anthropic:claude-haiku-4-5": (1, 0.10, 1.25, 5),
    "openai:gpt-6-astra": (10, 1, None, 50),
    "openai:gpt-6-sol": (2, 0.20, 2.5, 10),
    "openai:gpt-6-luna": (0.10, 0.01, 0.125, 0.50),
    "openai:gpt-6.1-sol": (2, 0.10, 2.5, 10),
    "openai:gpt-6.1-terra": (1, 0.05, 1.25, 5),
    "openai:gpt-5.6-sol": (4, 0.40, None, 20),
    "openai:gpt-5.6-terra": (2, 0.20, None, 12),
    "openai:gpt-5.6-luna": (0.20, 0.02, None, 1.20),
    "openai:gpt-5.5": (5, 0.50, None, 30),
    "openai:gpt-5.4": (2.5, 0.25, None, 15),
    "openai:gpt-5.4-mini": (0.75, 0.075, None, 4.5),
    "openai:gpt-5.4-nano": (0.20, 0.02, None, 1.25),
}


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    return path


ROW = """[[price]]
provider = "openai"
models = ["my-model"]
as_of = 2026-11-01
input_usd = 1
output_usd = 2
"""


@pytest.mark.parametrize("spec", WANTED)
def test_a_listed_model_costs_what_its_vendor_says(spec):
    plain, cached, written, output = WANTED[spec]
    usage = Usage(100_000, 7_000, cached_tokens=60_000, cache_write_tokens=30_000, reasoning_tokens=5_000)
    written = plain if written is None else written
    wanted = (10_000 * plain + 60_000 * cached + 30_000 * written + 7_000 * output) / MILLION
    assert LIST.cost_usd(spec, usage) == pytest.approx(wanted, rel=1e-12)
    worst = (100_000 * max(plain, written) + 7_000 * output) / MILLION
    assert LIST.worst_usd(spec, 100_000, 7_000) == pytest.approx(worst, rel=1e-12)


def test_the_list_has_these_models_only_each_with_its_date():
    assert {f"{row.provider}:{model}" for row in LIST.listed for model in row.models} == set(WANTED)
    assert all(datetime.date(2026, 6, 1) <= row.as_of <= datetime.date(2026, 10, 26) for row in LIST.listed)
    price = LIST.find("openai:gpt-6.1-terra", 1)
    assert price is not None
    assert price.as_of == datetime.date(2026, 10, 26)


@pytest.mark.parametrize(("tokens", "wanted"), [(0, 0.0), (100_000, 0.010), (100_001, 0.0500005), (1_000_000, 0.5)])
def test_longer_prompts_have_their_own_row(tokens, wanted):
    assert LIST.cost_usd("anthropic:claude-haiku-5-5", Usage(tokens, 0)) == pytest.approx(wanted, rel=1e-12)


def test_prompts_beyond_every_row_have_no_price():
    assert LIST.cost_usd("openai:gpt-6-sol", Usage(272_000, 1)) is not None
    assert LIST.cost_usd("openai:gpt-6-sol", Usage(272_001, 1)) is None
    assert LIST.worst_usd("openai:gpt-6-sol", 272_001, 1) is None


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        ("openai:gpt-6-sol-2026-09-22", True),
        ("anthropic:claude-haiku-4-5-20251001", True),
        ("openai:gpt-6-sol-2026-13-01", False),
        ("openai:gpt-6-sol-2026-0901", False),
        ("openai:gpt-6-sol-mini", False),
        ("openai:gpt-6-sol-20260922-mini", False),
        ("openai:gpt-6", False),
        ("anthropic:claude-opus-4-20250514", False),
        ("anthropic:gpt-6-sol", False),
        ("gpt-6-sol", False),
        ("mailbox:gpt-6-sol", False),
        ("openai:", False),
    ],
)
def test_dated_snapshots_have_the_price_of_their_model_and_nothing_else_matches_by_its_beginning(spec, known):
    assert (LIST.find(spec, 10) is not None) is known
    assert (LIST.cost_usd(spec, Usage(10, 10)) is not None) is known
    assert (LIST.worst_usd(spec, 10, 10) is not None) is known


def test_unknown_usage_is_unknown_cost():
    assert LIST.cost_usd("openai:gpt-6-sol", None) is None


def test_the_worst_is_never_less_than_the_cost():
    for spec in WANTED:
        for tokens in (1, 50_000, 150_000, 272_000):
            worst = LIST.worst_usd(spec, tokens, 1000)
            for usage in (Usage(tokens, 1000), Usage(tokens, 1000, 0, tokens), Usage(tokens // 2, 900, tokens // 2)):
                cost = LIST.cost_usd(spec, usage)
                assert worst is not None
                assert cost is not None
                assert cost <= worst * (1 + 1e-12)


def test_the_worst_looks_at_every_row_that_a_shorter_prompt_may_fall_into(tmp_path):
    text = (
        ROW
        + "above_input_tokens = 100\n"
        + ROW.replace("input_usd = 1", "input_usd = 9")
        + "up_to_input_tokens = 100\n"
    )
    table = PriceTable.load(own(tmp_path, text))
    assert table.cost_usd("openai:my-model", Usage(200, 0)) == pytest.approx(200 / MILLION)
    assert table.worst_usd("openai:my-model", 200, 0) == pytest.approx(200 * 9 / MILLION)
    assert table.worst_usd("openai:my-model", 100, 0) == pytest.approx(100 * 9 / MILLION)


def test_list_prices_hold_for_vendors_that_are_asked_themselves_and_the_users_own_always(tmp_path):
    table = PriceTable.load(own(tmp_path, ROW), listed=frozenset({"anthropic"}))
    assert table.find("openai:gpt-6-sol", 1) is None
    assert table.find("anthropic:claude-opus-5", 1) is not None
    assert table.cost_usd("openai:my-model", Usage(3, 4)) == pytest.approx(11 / MILLION)
    assert table.cost_usd("openai:my-model-2026-11-02", Usage(3, 4)) == pytest.approx(11 / MILLION)


def test_the_users_own_rows_replace_all_that_is_listed_of_a_model(tmp_path):
    text = ROW.replace("my-model", "gpt-6-sol") + "up_to_input_tokens = 1000\n"
    table = PriceTable.load(own(tmp_path, text))
    price = table.find("openai:gpt-6-sol", 1000)
    assert price is not None
    assert price.input_usd == 1
    assert price in table.own
    assert table.find("openai:gpt-6-sol", 1001) is None
    assert table.cost_usd("openai:gpt-6-sol", Usage(10, 0, 5, 5)) == pytest.approx(10 / MILLION)
    assert table.find("openai:gpt-6-luna", 1001) is not None


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        (ROW + ROW.replace("input_usd = 1", 'input_usd = "cheap"'), 11, "input_usd"),
        (ROW + ROW.replace("output_usd = 2\n", ""), 7, "output_usd"),
        (ROW + "colour = 3\n", 7, "colour"),
        (ROW + "origin = 'list'\n", 7, "origin"),
        (ROW.replace("input_usd = 1", "input_usd = -1"), 5, "input_usd"),
        (ROW.replace("input_usd = 1", "input_usd = nan"), 5, "input_usd"),
        (ROW.replace("input_usd = 1", "input_usd = true"), 5, "input_usd"),
        (ROW.replace("2026-11-01", "'lately'"), 4, "as_of"),
        (ROW.replace('["my-model"]', "[]"), 3, "models"),
        (ROW + "above_input_tokens = 5\nup_to_input_tokens = 5\n", 1, "above_input_tokens"),
        (ROW + "[other]\n", 7, "other"),
        ("# nothing\nprice = 3\n", 2, "price"),
        ("price = [1]\n", 1, "price"),
        (ROW + "input_usd = \n", 7, "line 7"),
    ],
)
def test_a_broken_file_is_refused_with_line_and_field(tmp_path, text, line, field):
    path = own(tmp_path, text)
    with pytest.raises(UsageError, match=f"line {line}\\b") as caught:
        PriceTable.load(path)
    assert field in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        PriceTable.load(tmp_path / "missing.toml")
    path = tmp_path / "latin.toml"
    path.write_bytes(b"# \xff\n")
    with pytest.raises(UsageError, match="no valid TOML"):
        PriceTable.load(path)


def test_a_price_is_frozen():
    price = LIST.listed[0]
    assert isinstance(price, Price)
    with pytest.raises(ValidationError):
        price.input_usd = 0.0
