"""TensorBoard: event files in the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equipoise.report.trackers.tracker import Figures, module


class TensorBoard:
    """Event files in the run folder: ``tensorboard --logdir runs`` shows all runs below it."""

    def __init__(self, out: Path, config: dict[str, Any], known: str | None) -> None:
        self.id = "tensorboard"
        self._writer = module("torch.utils.tensorboard.writer").SummaryWriter(
            str(out / "tensorboard")
        )
        if known is None:
            rows = "".join(f"| {name} | {value} |\n" for name, value in config.items())
            self._writer.add_text("config", f"| option | value |\n|---|---|\n{rows}")

    def write(self, step: int, figures: Figures) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        self._writer.close()
