"""``kernelwright serve``."""

from __future__ import annotations

import click

from kernelwright.cli._common import Common, common_options, say


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="What to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8765, show_default=True, help="0: any that is free.")
@click.option("--public", is_flag=True, help="Let other machines read it; that needs a token for reading.")
@click.option("--name", "names", multiple=True, metavar="HOST", help="A name by which it is asked for (repeatable).")
@click.option("--accept-submissions", is_flag=True, help="Take kernels of holders of a token into the spool.")
@click.option(
    "--processes",
    type=click.IntRange(0, 16),
    metavar="N",
    help="How many processes make pages; 0: the server itself. By default one for each core, up to four.",
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
    """The leaderboard as a web site on this machine, with the evidence behind every number. Ctrl-C ends it.

    The store is only read. Submissions are files in a folder beside it, which 'kernelwright submissions judge' judges.
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
