"""The progress of a training, stored line by line: for its curve, for TensorBoard, and for resuming it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernelwright.files import write_whole

METRICS: Final = "metrics.jsonl"
CHECKPOINTS: Final = "checkpoints"
_COMPLETE: Final = "complete"  # marks a complete checkpoint


class Progress:
    """The rows of a training, one for each batch of completions (or, supervised, each log), in ``metrics.jsonl``.

    Attributes:
        rows: all rows, those of earlier processes first.
    """

    def __init__(self, folder: Path, *, tensorboard: bool = True) -> None:
        self._path = folder / METRICS
        self._board_dir = folder / "tensorboard" if tensorboard else None
        self._board: Any = None
        self.rows: list[dict[str, Any]] = list(read_lines(self._path))

    @property
    def seconds(self) -> float:
        """Seconds of training up to the last row."""
        return float(self.rows[-1]["seconds"]) if self.rows else 0.0

    def cut(self, step: int) -> None:
        """Forget the rows after an optimizer step: that part is done again."""
        kept = [row for row in self.rows if row["step"] <= step]
        if len(kept) < len(self.rows):
            self.rows = kept
            write_lines(self._path, kept)

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a row. It has ``step`` and ``seconds``; its numbers go to TensorBoard as well."""
        self.rows.append(dict(row))
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        if self._board_dir is not None:
            if self._board is None:
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(str(self._board_dir))
            for name, value in row.items():
                if isinstance(value, int | float) and name != "step":
                    self._board.add_scalar(name, value, row["step"])
            self._board.flush()

    def close(self) -> None:
        """Close the file that TensorBoard reads."""
        if self._board is not None:
            self._board.close()
            self._board = None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file, one a line. A last line that a killed process left unfinished is ignored."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a file of lines."""
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))


def mark_complete(checkpoint: Path) -> None:
    """Mark a checkpoint as complete."""
    (checkpoint / _COMPLETE).touch()


def last_checkpoint(folder: Path) -> tuple[Path, int] | None:
    """The latest complete checkpoint and its step; None if there is none. Incomplete checkpoints are removed."""
    import shutil

    whole = []
    for path in sorted((folder / CHECKPOINTS).glob("checkpoint-*")):
        if (path / _COMPLETE).exists():
            whole.append((int(path.name.rpartition("-")[2]), path))
        else:
            shutil.rmtree(path)
    if not whole:
        return None
    step, path = max(whole)
    return path, step
