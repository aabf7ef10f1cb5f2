"""Base class of methods that share some blocks and keep the others at the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import Capabilities, Method, Task, TrainingConfig, option
from equipoise.core.messages import require_blocks
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class PartialSharing(Method):
    """Keep the blocks that the paper keeps, or those that the user names."""

    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)

    keep: str = option(
        "", "blocks that stay at the clients, separated by commas; empty for the published ones"
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse unknown block names, and a `keep` that leaves nothing to share."""
        require_blocks(task.info.blocks, self._keep_names, "keep")
        if self.keep and not (self.shared_blocks(task) and self.local_blocks(task)):
            raise UsageError(
                f"keep is '{self.keep}': must leave some blocks of {', '.join(task.info.blocks)} "
                "to be shared"
            )
        super().check(task, training)

    def shared_blocks(self, task: Task) -> tuple[str, ...]:
        """Return the blocks that are sent and averaged."""
        if not self.keep:
            return super().shared_blocks(task)
        return tuple(block for block in task.info.blocks if block not in self._keep_names)

    def local_blocks(self, task: Task) -> tuple[str, ...]:
        """Return the blocks that stay at the clients."""
        shared = self.shared_blocks(task)
        return tuple(block for block in task.info.blocks if block not in shared)

    @property
    def _keep_names(self) -> tuple[str, ...]:
        """Return the block names in `keep`."""
        return tuple(name.strip() for name in self.keep.split(",") if name.strip())
