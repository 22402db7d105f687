"""``kernelwright rl serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelwright.cli._common import Common, common_options, say
from kernelwright.cli._runs import find_run


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="What to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8775, show_default=True, help="0: any that is free.")
@click.option("--reward", default="kernelwright", show_default=True, metavar="NAME", help="What verdicts earn.")
@click.option("--problems", multiple=True, metavar="P", help="Only these may be asked for (repeatable).")
@click.option("--queue", type=click.IntRange(2, 10_000), default=64, show_default=True, help="Jobs that may wait.")
@click.option(
    "--sessions", type=click.IntRange(1, 64), default=4, show_default=True, help="Problems that are kept ready."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Tokens, one a line, of which clients need one. Other addresses than loopback need this.",
)
@click.option("--run", "run_id", metavar="RUN", help="Go on with a run: what it has judged is not judged again.")
@click.option("--sandbox", metavar="S", help="bwrap, docker, process or none.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads while timing.")
@click.option("--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="More suites.")
@common_options
def serve(
    common: Common,
    host: str,
    port: int,
    reward: str,
    problems: tuple[str, ...],
    queue: int,
    sessions: int,
    token_file: Path | None,
    run_id: str | None,
    **flags: Any,
) -> None:
    """The referee as a reward, for trainers in other processes or on other machines. SIGINT or SIGTERM ends it.

    Every verdict is recorded in the store. A kernel that was judged in the run is not judged again.
    """
    from kernelwright.rl import RewardOptions, serve_rewards

    settings = common.settings(**flags)
    known = None
    if run_id is not None:
        with common.open_store(settings, readonly=True) as store:
            known = find_run(store, run_id).id
    options = RewardOptions(
        reward=reward,
        host=host,
        port=port,
        problems=problems,
        queue=queue,
        sessions=sessions,
        token_file=token_file,
        run_id=known,
    )

    def started(address: str) -> None:
        common.show({"url": address, "reward": reward}, f"rewards are at {address}")
        say("Ctrl-C ends it")

    serve_rewards(settings, options, started=started)
