"""Trees on tables that stay on their owners' machines."""

from __future__ import annotations

from equipoise.core import Preparation, TrainingConfig
from equipoise.tasks.remote_tables import LocalFolderData, ReportedSizes
from equipoise.tasks.trees import TreesTask
from equipoise.trees.config import TreeOptions


class RemoteTreesTask(ReportedSizes, TreesTask):
    """An ensemble of trees on the tables of one machine."""

    def __init__(
        self,
        data: LocalFolderData,
        training: TrainingConfig,
        options: TreeOptions,
        preparation: Preparation,
    ) -> None:
        """Create the task.

        Args:
            data: Rows of this machine.
            training: Settings of local training.
            options: Options of boosting.
            preparation: The agreed preprocessing, and the bytes that the agreement took.
        """
        categories = data.preprocessor.num_categories if data.preprocessor else ()
        TreesTask.__init__(
            self,
            "remote-tables",
            data,
            training,
            options,
            categories,
            preparation=preparation,
        )
        self.reported_sizes = {}
