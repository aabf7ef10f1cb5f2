"""What methods have in common that keep some blocks at the clients and share the others."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.core import Method, Task, TrainingConfig, option
from equipoise.core.blocks import require_blocks
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class PartialSharing(Method):
    """Which blocks are kept is as published unless the user names them."""

    keep: str = option(
        "", "blocks that stay at the clients, with commas between; empty for the published ones"
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        require_blocks(task.blocks, self._named, "keep")
        if self.keep and not (self.shared_blocks(task) and self.kept(task)):
            raise UsageError(
                f"keep is '{self.keep}': must leave some blocks of {', '.join(task.blocks)} to be shared"
            )
        super().check(task, training)

    @property
    def _named(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.keep.split(",") if name.strip())

    def shared_blocks(self, task: Task) -> tuple[str, ...]:
        if not self.keep:
            return super().shared_blocks(task)
        return tuple(block for block in task.blocks if block not in self._named)

    def kept(self, task: Task) -> tuple[str, ...]:
        """The blocks that stay."""
        travels = self.shared_blocks(task)
        return tuple(block for block in task.blocks if block not in travels)
