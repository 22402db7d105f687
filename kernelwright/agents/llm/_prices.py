"""Prices of tokens. An unknown price is None, never 0."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from kernelwright.agents.llm._types import Usage
from kernelwright.errors import UsageError
from kernelwright.records import Record

LISTED = Path(__file__).with_name("prices.toml")
VENDORS = frozenset({"openai", "anthropic"})

_SNAPSHOT = re.compile(r"-20\d\d(-?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])$")
_PER = 1_000_000

Usd = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Tokens = Annotated[int, Field(strict=True, ge=0)]


class Price(Record):
    """One row of a price table: USD per million tokens, for prompts within a range of lengths in tokens."""

    provider: str = Field(min_length=1)
    models: tuple[str, ...] = Field(min_length=1)
    as_of: datetime.date
    input_usd: Usd
    cached_usd: Usd | None = None
    cache_write_usd: Usd | None = None
    output_usd: Usd
    above_input_tokens: Tokens | None = None
    up_to_input_tokens: Tokens | None = None

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Price:
        if self.up_to_input_tokens is not None and (self.above_input_tokens or 0) >= self.up_to_input_tokens:
            raise ValueError("above_input_tokens must be less than up_to_input_tokens")
        return self

    def holds_for(self, input_tokens: int) -> bool:
        """Whether this row applies to a prompt of ``input_tokens`` tokens."""
        above = self.above_input_tokens is None or input_tokens > self.above_input_tokens
        return above and (self.up_to_input_tokens is None or input_tokens <= self.up_to_input_tokens)

    def cost_usd(self, usage: Usage) -> float:
        """The cost of a reply by this row."""
        cached_usd = self.input_usd if self.cached_usd is None else self.cached_usd
        write_usd = self.input_usd if self.cache_write_usd is None else self.cache_write_usd
        plain = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
        return (
            plain * self.input_usd
            + usage.cached_tokens * cached_usd
            + usage.cache_write_tokens * write_usd
            + usage.output_tokens * self.output_usd
        ) / _PER

    def worst_usd(self, input_tokens: int, output_tokens: int) -> float:
        """The highest cost of these tokens by this row, at the dearest input price."""
        input_usd = max(self.input_usd, self.cached_usd or 0.0, self.cache_write_usd or 0.0)
        return (input_tokens * input_usd + output_tokens * self.output_usd) / _PER


class PriceTable:
    """Prices by ``provider:model``, from the user's own file first, then from the vendors' list."""

    def __init__(self, own: Iterable[Price], listed: Iterable[Price]) -> None:
        self.own = tuple(own)
        self.listed = tuple(listed)

    @classmethod
    def load(cls, override: Path | None = None, *, listed: frozenset[str] = VENDORS) -> PriceTable:
        """Read the vendors' list and the user's own file.

        Args:
            override: the user's TOML file, of the same form. Its prices replace all listed prices of a model.
            listed: providers whose list prices apply because they are asked at the vendor's own base URL.

        Raises:
            UsageError: the file cannot be read, or contains an entry that is not a price.
        """
        own = _read(override) if override is not None else []
        return cls(own, (row for row in _read(LISTED) if row.provider in listed))

    def find(self, spec: str, input_tokens: int) -> Price | None:
        """The row that applies to a prompt, or None if none is known.

        A dated snapshot (``-2026-03-01``, ``-20260301``) without its own price has its model's price.
        """
        return next((row for row in self._rows_of(spec) if row.holds_for(input_tokens)), None)

    def cost_usd(self, spec: str, usage: Usage | None) -> float | None:
        """The cost of a reply; None if the usage or the price is unknown."""
        price = None if usage is None else self.find(spec, usage.input_tokens)
        return None if price is None or usage is None else price.cost_usd(usage)

    def worst_usd(self, spec: str, input_tokens: int, output_tokens: int) -> float | None:
        """The highest possible cost of a reply; None if the price is unknown.

        Args:
            input_tokens: the most tokens of the prompt.
            output_tokens: the most tokens of the reply.
        """
        if self.find(spec, input_tokens) is None:
            return None
        reachable = [row for row in self._rows_of(spec) if (row.above_input_tokens or -1) < input_tokens]
        return max(row.worst_usd(input_tokens, output_tokens) for row in reachable)

    def _rows_of(self, spec: str) -> list[Price]:
        """All rows of one model; from the user's file alone if the model is in it."""
        provider, _, model = spec.partition(":")
        for table in (self.own, self.listed):
            for name in (model, _SNAPSHOT.sub("", model)):
                rows = [row for row in table if row.provider == provider and name in row.models]
                if rows:
                    return rows
        return []


def _read(path: Path) -> list[Price]:
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise _broken(path, f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:  # both say where
        raise _broken(path, f"is no valid TOML: {error}") from error
    rows = table.pop("price", [])
    if table or not isinstance(rows, list):
        field = next(iter(table), "price")
        raise _broken(path, f"line {_line(text, None, field)}: {field}: only [[price]] tables are known", field=field)
    found: list[Price] = []
    for number, row in enumerate(rows):
        try:
            found.append(Price.model_validate(row))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = str(first["loc"][0]) if first["loc"] else "price"
            message = first["msg"].removeprefix("Value error, ")
            line = _line(text, number, field)
            raise _broken(path, f"line {line}: {field}: {message}", line=line, field=field) from error
    return found


def _line(text: str, table: int | None, field: str) -> int:
    """The line, from 1, of a field in a [[price]] table (None: anywhere); the table's line if the field is missing."""
    current, header = -1, 1
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(r"\s*\[\[\s*price\s*\]\]", line):
            current += 1
            header = number if current == table else header
        elif table in (None, current) and re.match(rf"\s*\[*\s*[\"']?{re.escape(field)}\b", line):
            return number
    return header


def _broken(path: Path, what: str, **data: Any) -> UsageError:
    return UsageError(f"the price file {path} {what}", hint="mend the file", file=str(path), **data)
