"""``kernelwright serve``."""

from __future__ import annotations

import click

from kernelwright.cli._common import Common, common_options, say


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8765,
    show_default=True,
    help="Port to listen on; 0: any free one.",
)
@click.option("--public", is_flag=True, help="Let other machines read it, with a token for reading.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="Host name under which clients reach the server (repeatable).",
)
@click.option("--accept-submissions", is_flag=True, help="Accept kernels from holders of a token.")
@click.option(
    "--processes",
    type=click.IntRange(0, 16),
    metavar="N",
    help="Processes that make pages; 0: the server itself makes them. Default: one for each core, up to four.",
)
@common_options
def serve(
    common: Common,
    host: str,
    port: int,
    public: bool,
    names: tuple[str, ...],
    accept_submissions: bool,
    processes: int | None,
) -> None:
    """Serve the leaderboard as a web site, with the evidence behind every number. Ctrl-C ends it.

    The store is only read. Submissions are files in a folder beside it; 'kernelwright submissions judge' judges them.
    """
    from kernelwright.leaderboard import ServeOptions
    from kernelwright.leaderboard import serve as run
    from kernelwright.submissions import places

    settings = common.settings()
    with common.open_store(settings, readonly=True):
        pass
    where = places(settings)
    options = ServeOptions(
        store=settings.store,
        tokens_file=where.tokens_file,
        cache_dir=settings.cache_dir,
        host=host,
        port=port,
        public=public,
        names=names,
        spool_dir=where.spool_dir if accept_submissions else None,
        processes=processes,
    )

    def started(address: str) -> None:
        common.show({"url": address}, f"the leaderboard is at {address}")
        say("Ctrl-C ends it")

    run(options, started=started)
