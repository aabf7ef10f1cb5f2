"""When patience ends: by the validation loss, counted by hand."""

import pytest

from equipoise.records.rounds import RoundRecord
from equipoise.records.scores import NOTHING, Evaluations, Scores
from equipoise.records.summary import evaluations_without_gain
from helpers_records import record as empty_record


def record(number: int, **personal: float) -> RoundRecord:
    """A round whose personal models have these validation scores."""
    return empty_record(number, val=Evaluations(global_=NOTHING, personal=Scores(personal)))


@pytest.mark.parametrize(
    ("losses", "count"),
    [
        ([1.0], 0),
        ([1.0, 0.9, 0.8], 0),
        ([1.0, 0.9, 0.95, 0.91], 2),
        ([1.0, 0.99995, 0.99992], 2),  # gains below a ten-thousandth do not count
        ([1.0, 0.9998, 0.9999], 1),
    ],
)
def test_the_loss_decides(losses: list[float], count: int) -> None:
    records = [record(i, auc=i / 100, loss=loss) for i, loss in enumerate(losses, start=1)]
    assert evaluations_without_gain(records, "auc", True) == count


def test_rounds_without_evaluation_do_not_count_and_returns_replace_losses() -> None:
    empty = empty_record(2, val=None)
    records = [record(1, **{"return": 5.0}), empty, record(3, **{"return": 4.0})]
    assert evaluations_without_gain(records, "return", True) == 1
    assert evaluations_without_gain(records, "return", False) == 0
