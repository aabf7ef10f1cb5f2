"""Load models that :meth:`equipoise.Run.save_pretrained` wrote, without the run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import nn

from equipoise.api.errors import speaks_python
from equipoise.api.frames import Predictions
from equipoise.api.results import as_predictions
from equipoise.experiment import pretrained
from equipoise.experiment.model_card import Card


@speaks_python
@dataclass(frozen=True)
class Pretrained:
    """Models of a folder: the global one, and those of clients that agreed to share theirs."""

    folder: Path

    @cached_property
    def card(self) -> Card:
        """Method, task, inputs and target of the models."""
        return pretrained.read_pretrained(self.folder)

    @property
    def clients(self) -> tuple[str, ...]:
        """Clients with a personal model."""
        return self.card.clients

    def model(self, client: str | None = None) -> nn.Module:
        """Return the network of a client, or the global one."""
        return pretrained.load_predictor(self.folder, client).module

    def predict(
        self, rows: object, client: str | None = None, *, probabilities: bool = False
    ) -> Predictions:
        """Predict new rows, as :meth:`Run.predict` does.

        Args:
            rows: Rows as in training: a table with its feature columns, or an array of samples.
            client: Client of a personal model; None for the global model.
            probabilities: Whether to return class probabilities ``[rows, classes]``.

        Returns:
            Predictions ``[rows]``, in the kind of data frame that the rows are.

        Raises:
            UsageError: If there is no such model, or the rows do not fit.
        """
        predictor = pretrained.load_predictor(self.folder, client)
        return as_predictions(predictor.card, predictor.outputs(rows), rows, probabilities)


@speaks_python
def load(folder: str | Path) -> Pretrained:
    """Load the models of a folder that :meth:`Run.save_pretrained` wrote.

    Args:
        folder: The folder; one from the hub is downloaded first, with ``hf download NAME``.

    Returns:
        The models.

    Raises:
        UsageError: If the folder holds no model.
    """
    model = Pretrained(Path(folder))
    pretrained.read_pretrained(model.folder)
    return model
