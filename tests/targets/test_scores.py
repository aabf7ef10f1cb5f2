"""Every score against scikit-learn or a number computed by hand; padded
rows and rows of one class.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.training import metrics as classes
from equipoise.training import metrics as numbers
from equipoise.training import metrics as survival

metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


def rows(
    classes: int, n: int = 60, models: int = 3, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of few values, so that there are ties; labels; and which rows count."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.integers(-2, 3, (models, n, classes)) / 2.0)
    y = torch.from_numpy(rng.integers(0, classes, (models, n)))
    real = torch.arange(n) < torch.tensor([[n], [n - 13], [n - 40]])[:models]
    return logits, y, real


def each(logits: Tensor, y: Tensor, real: Tensor):
    for k in range(len(logits)):
        share = logits[k][real[k]].softmax(-1).numpy()
        yield k, share, y[k][real[k]].numpy()


@pytest.mark.parametrize("count", [2, 4])
def test_scores_of_classes_are_those_of_scikit_learn(count: int) -> None:
    data = rows(count)
    found = {
        "auc": classes.auc(*data),
        "balanced": classes.balanced_accuracy(*data),
        "f1": classes.macro_f1(*data),
        "ap": classes.average_precision(*data),
    }
    for k, share, y in each(*data):
        chosen = share.argmax(1)
        if count == 2:
            area, precision = (
                metrics.roc_auc_score(y, share[:, 1]),
                metrics.average_precision_score(y, share[:, 1]),
            )
        else:
            area = metrics.roc_auc_score(y, share, multi_class="ovr", average="macro")
            hot = np.eye(count)[y]
            precision = metrics.average_precision_score(hot, share, average="macro")
        assert found["auc"][k].item() == pytest.approx(area, abs=1e-12)
        assert found["ap"][k].item() == pytest.approx(precision, abs=1e-12)
        assert found["balanced"][k].item() == pytest.approx(
            metrics.balanced_accuracy_score(y, chosen), abs=1e-12
        )
        assert found["f1"][k].item() == pytest.approx(
            metrics.f1_score(y, chosen, average="macro"), abs=1e-12
        )


def test_scores_of_numbers_are_those_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, y = torch.randn(2, 3, 40, generator=generator, dtype=torch.float64)
    real = torch.arange(40) < torch.tensor([[40], [27], [5]])
    for k in range(3):
        mine = (y[k][real[k]].numpy(), predicted[k][real[k]].numpy())
        assert numbers.rmse(predicted, y, real)[k].item() == pytest.approx(
            metrics.root_mean_squared_error(*mine)
        )
        assert numbers.mae(predicted, y, real)[k].item() == pytest.approx(
            metrics.mean_absolute_error(*mine)
        )
        assert numbers.r2(predicted, y, real)[k].item() == pytest.approx(metrics.r2_score(*mine))


def test_one_class_alone_has_no_auc_but_an_accuracy() -> None:
    logits, real = (
        torch.randn(1, 5, 2, generator=torch.Generator().manual_seed(1)),
        torch.ones(1, 5, dtype=torch.bool),
    )
    ones = torch.ones(1, 5, dtype=torch.int64)
    assert math.isnan(classes.auc(logits, ones, real).item())
    assert math.isnan(classes.average_precision(logits, ones - 1, real).item())
    assert classes.average_precision(logits, ones, real).item() == 1.0
    right = (logits.argmax(-1) == 1).double().mean()
    assert classes.balanced_accuracy(logits, ones, real).item() == pytest.approx(right.item())


def test_several_classes_of_which_one_is_absent() -> None:
    """The mean of one against the rest is over those that can be told from a rest."""
    logits = torch.tensor([[[3.0, 0, 0], [0, 3, 0], [2, 0, 0], [0, 2, 0]]])
    y, real = torch.tensor([[0, 1, 0, 1]]), torch.ones(1, 4, dtype=torch.bool)
    assert classes.auc(logits, y, real).item() == 1.0
    assert classes.macro_f1(logits, y, real).item() == 1.0


def test_calibration_by_hand() -> None:
    """Confidences 0.6 (right), 0.6 (wrong), 0.9 (right): |0.6 - 0.5| for two of three rows, 0.1 for
    the third.
    """
    share = torch.tensor([[[0.6, 0.4], [0.6, 0.4], [0.1, 0.9], [0.5, 0.5]]], dtype=torch.float64)
    y, real = torch.tensor([[0, 1, 1, 0]]), torch.tensor([[True, True, True, False]])
    found = classes.expected_calibration_error(share.log(), y, real)
    assert found.item() == pytest.approx((2 * 0.1 + 0.1) / 3, abs=1e-12)


def test_concordance_by_hand() -> None:
    """Events at 1 and 3, censored at 2 and 3.

    Pairs: 1 before the three others, 3 before the one censored at 3.
    """
    y = torch.tensor([[[1.0, 1.0], [2.0, 0.0], [3.0, 1.0], [3.0, 0.0], [0.5, 1.0]]])
    risk, real = torch.tensor([[0.7, 0.9, 0.2, 0.2, 5.0]]), torch.tensor([[True] * 4 + [False]])
    # (1, 2): wrong; (1, 3) and (1, 3c): right; (3, 3c): a tie.
    assert survival.concordance(risk, y, real).item() == pytest.approx((0 + 1 + 1 + 0.5) / 4)
    censored = torch.tensor([[[1.0, 0.0], [2.0, 0.0]]])
    assert math.isnan(survival.concordance(risk[:, :2], censored, real[:, :2]).item())


def test_concordance_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(2)
    y = torch.stack(
        [torch.rand(2, 30, generator=generator), torch.randint(0, 2, (2, 30), generator=generator)],
        -1,
    )
    risk, real = torch.randn(2, 30, generator=generator), torch.ones(2, 30, dtype=torch.bool)
    whole = survival.concordance(risk, y, real)
    monkeypatch.setattr(survival, "MAX_PAIRS_AT_ONCE", 100)
    assert torch.equal(survival.concordance(risk, y, real), whole)
    assert torch.allclose(
        survival.concordance(-y[..., 0], y, real), torch.ones(2, dtype=torch.float64)
    )
