"""``kernelwright rl serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelwright.cli._common import Common, common_options, say
from kernelwright.cli._runs import find_run


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8775,
    show_default=True,
    help="Port to listen on; 0: any free one.",
)
@click.option(
    "--reward", default="kernelwright", show_default=True, metavar="NAME", help="Reward formula, see 'rl rewards'."
)
@click.option("--problems", multiple=True, metavar="P", help="Serve only these problems (repeatable).")
@click.option("--queue", type=click.IntRange(2, 10_000), default=64, show_default=True, help="Limit of waiting jobs.")
@click.option(
    "--sessions", type=click.IntRange(1, 64), default=4, show_default=True, help="Number of problems to keep ready."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Tokens, one a line; each client needs one. Required for addresses other than loopback.",
)
@click.option("--run", "run_id", metavar="RUN", help="Continue a run; its kernels are not judged again.")
@click.option("--sandbox", metavar="S", help="bwrap, docker, process or none.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads while timing.")
@click.option(
    "--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="Folder of more suites."
)
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
    """Serve rewards by the referee to trainers in other processes or on other machines. SIGINT or SIGTERM ends it.

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
