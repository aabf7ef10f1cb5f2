"""Weights & Biases: an offline run in the run folder."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

from equipoise.report.trackers.tracker import PROJECT, Figures, module


class WandB:
    """An offline run in the run folder, for ``wandb sync``; WANDB_MODE=online sends it at once."""

    def __init__(self, out: Path, config: dict[str, Any], known: str | None) -> None:
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nothing leaves the machine
        wandb = module("wandb")
        self.id = known or uuid.uuid4().hex[:12]
        settings = wandb.Settings(
            **{
                "mode": mode,
                "silent": True,
                "console": "off",
                "disable_git": True,
                "disable_code": True,
            },
            **{"x_disable_stats": True, "x_disable_meta": True},
        )
        self._run = wandb.init(
            **{
                "project": os.environ.get("WANDB_PROJECT", PROJECT),
                "name": str(out),
                "id": self.id,
            },
            **{
                "dir": str(out),
                "config": config,
                "settings": settings,
                "resume": "allow" if mode == "online" else None,
            },
        )

    def write(self, step: int, figures: Figures) -> None:
        self._run.log(
            figures, step=step
        )  # kept open until the next step: the summary joins the last round

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
