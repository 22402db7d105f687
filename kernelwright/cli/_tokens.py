"""``kernelwright tokens``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from kernelwright.cli._common import Common, common_options, say
from kernelwright.cli._tables import table

if TYPE_CHECKING:
    from kernelwright.submissions import Scope, Token, Tokens


@click.group()
def tokens() -> None:
    """Create, list and revoke tokens for reading a public leaderboard and for submitting kernels."""


@tokens.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(["read", "submit"]),
    help="What the token allows (repeatable); default: submit.",
)
@click.option("--days", type=click.IntRange(min=1), help="Days until it expires; default: never.")
@common_options
def create(common: Common, name: str, scopes: tuple[Scope, ...], days: int | None) -> None:
    """Create a token and print its secret, which is shown only once.

    Kernels submitted with the token appear on the board as submitted:NAME.
    """
    opened = _opened(common)
    made = opened.create(name, scopes or ("submit",), days=days)
    say(f"{_in_words(made.token)}; the line below is its secret. It is not stored: copy it now")
    common.show({**_data(made.token), "secret": made.secret}, made.secret)


@tokens.command("list")
@common_options
def list_tokens(common: Common) -> None:
    """List all tokens, also expired and revoked ones, without their secrets."""
    found = _opened(common).tokens()
    made = table("name", "for", "state", "created", "ends")
    for token in found:
        ends = token.expires_at.isoformat(" ", "minutes") if token.expires_at else "never"
        made.add_row(
            token.name, ", ".join(token.scopes), _state(token), token.created_at.isoformat(" ", "minutes"), ends
        )
    data = {"tokens": [_data(token) for token in found]}
    common.show(data, made if found else "no tokens yet: kernelwright tokens create NAME")


@tokens.command()
@click.argument("name")
@common_options
def revoke(common: Common, name: str) -> None:
    """Revoke a token at once, also in running servers."""
    token = _opened(common).revoke(name)
    common.show(_data(token), f"{token.name} is revoked")


def _opened(common: Common) -> Tokens:
    from kernelwright.submissions import Tokens, places

    return Tokens(places(common.settings()).tokens_file)


def _state(token: Token) -> str:
    return token.state_at(datetime.now(UTC))


def _data(token: Token) -> dict[str, Any]:
    return {**token.model_dump(mode="json"), "state": _state(token)}


def _in_words(token: Token) -> str:
    ends = f"until {token.expires_at.isoformat(' ', 'minutes')}" if token.expires_at else "without expiry"
    return f"token {token.name} for {' and '.join(token.scopes)}, {ends}"
