"""``kernelwright.optimize`` for interactive use: it reports progress on a terminal and in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kernelwright.campaign import CampaignEvent
from kernelwright.campaign.api import optimize as optimize_silently
from kernelwright.cli._progress import show_progress

if TYPE_CHECKING:
    import torch


def optimize(
    model: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    *,
    progress: bool | None = None,
    tell: Callable[[CampaignEvent], None] | None = None,
    **options: Any,
) -> torch.nn.Module:
    """Write, prove and time kernels for a live module; returns a drop-in that shares the module's weights.

    The drop-in runs its kernel for inputs like ``example_inputs`` in evaluation mode and without gradients, and the
    module's own computation for everything else.

    Args:
        model: any module that ``torch.export`` accepts.
        example_inputs: positional inputs of its forward.
        progress: whether to report progress on standard error; by default on a terminal and in a notebook.
        tell: a callback for each event, instead of progress on standard error.
        options: ``name``, ``settings``, and single settings such as ``rounds=3``.

    Returns:
        The drop-in; ``model`` itself, with a UserWarning, if no faster kernel could be proved.

    Raises:
        UsageError: the module cannot be captured, or an option is invalid.
        MachineError, MissingToolError: this machine cannot judge kernels.
    """
    if tell is not None:
        return optimize_silently(model, example_inputs, tell=tell, **options)
    shown = somebody_looks() if progress is None else progress
    with show_progress(quiet=not shown) as told:
        return optimize_silently(model, example_inputs, tell=told, **options)


def somebody_looks() -> bool:
    """Whether standard error is a terminal, or a notebook's cell."""
    shell = sys.modules.get("IPython")
    return sys.stderr.isatty() or (shell is not None and shell.get_ipython() is not None)
