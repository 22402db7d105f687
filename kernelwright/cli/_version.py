"""``kernelwright version``."""

from __future__ import annotations

import platform

import click

from kernelwright.cli._common import Common, common_options


@click.command()
@common_options
def version(common: Common) -> None:
    """Print the version."""
    from kernelwright import __version__

    common.show(
        {"kernelwright": __version__, "python": platform.python_version()},
        f"kernelwright {__version__} (Python {platform.python_version()})",
    )
