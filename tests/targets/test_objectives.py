"""Losses of every kind of target: numbers by hand, numeric gradients, rows that only fill up."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import vmap

from equipoise.data.federated_dataset import Target, unnamed_classes
from equipoise.training.objectives import balanced_class_weights, objective_of
from equipoise.utils.errors import UsageError

COX = objective_of(Target("survival", "T", event="E"))
H = torch.tensor([0.3, -1.2, 0.8, 0.1, -0.4], dtype=torch.float64)
Y = torch.tensor([[5.0, 1], [2.0, 1], [2.0, 0], [2.0, 1], [9.0, 0]], dtype=torch.float64)


def by_hand() -> list[float]:
    """Each event against all whose time is not smaller: Breslow takes ties into each other's risk
    sets.
    """
    out = []
    for i in range(5):
        at_risk = sum(math.exp(H[j]) for j in range(5) if Y[j, 0] >= Y[i, 0])
        out.append(float(Y[i, 1]) * (math.log(at_risk) - float(H[i])))
    return out


def test_cox_is_the_partial_likelihood_with_breslow_ties() -> None:
    assert COX.losses(H[:, None], Y).tolist() == pytest.approx(by_hand(), abs=1e-14)


def test_cox_of_a_stack_and_mapped_is_that_of_each() -> None:
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(4, 6, 1, generator=generator, dtype=torch.float64)
    y = torch.stack(
        [
            torch.randint(1, 4, (4, 6), generator=generator),
            torch.randint(0, 2, (4, 6), generator=generator),
        ],
        -1,
    )
    y = y.double()
    each = torch.stack([COX.losses(h[k], y[k]) for k in range(4)])
    assert torch.allclose(COX.losses(h, y), each, atol=1e-14)
    assert torch.allclose(vmap(COX.losses)(h, y), each, atol=1e-14)


def test_cox_has_the_gradient_of_its_values() -> None:
    h = H[:, None].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda h: COX.losses(h, Y).mean(), (h,))


def test_rows_that_fill_a_batch_change_neither_losses_nor_gradients() -> None:
    filled_h = torch.cat([H, torch.tensor([50.0, 3.0], dtype=torch.float64)])[
        :, None
    ].requires_grad_()
    y = torch.cat([Y, Y[:2]])
    marked = COX.mask_padding(y, torch.arange(7) < 5)
    losses = COX.losses(filled_h, marked)
    assert losses.tolist() == pytest.approx([*by_hand(), 0, 0], abs=1e-14)
    gradient = torch.autograd.grad(losses.sum(), filled_h)[0].flatten()
    assert bool(torch.isfinite(gradient).all())
    assert gradient[5:].tolist() == [0, 0]


def test_squared_and_absolute_errors_are_in_deviations_of_the_target() -> None:
    target = Target("regression", "delay", mean=10.0, scale=4.0)
    outputs, y = torch.tensor([[0.5], [-1.0]]), torch.tensor([14.0, 8.0])
    assert objective_of(target).losses(outputs, y).tolist() == [0.25, 0.25]
    assert objective_of(target, absolute=True).losses(outputs, y).tolist() == [0.5, 0.5]
    scores = objective_of(target).score(outputs[None], y[None], None, ("rmse", "mae", "r2", "loss"))
    assert {name: value.item() for name, value in scores.items()} == pytest.approx(
        {"rmse": 2.0, "mae": 2.0, "r2": 1 - 4 / 9, "loss": 0.25}
    )


def test_balanced_weights_make_classes_count_alike() -> None:
    counts = torch.tensor([90, 10, 0])
    weights = balanced_class_weights(counts)
    assert (weights * counts).tolist() == pytest.approx([50.0, 50.0, 0.0])
    y, logits = torch.tensor([0, 1]), torch.tensor([[0.2, -0.1, 0.0], [0.3, 0.4, -1.0]])
    plain = objective_of(unnamed_classes(3)).losses(logits, y)
    assert torch.allclose(
        objective_of(unnamed_classes(3), class_weights=weights).losses(logits, y),
        plain * weights.float()[y],
    )


def test_who_knows_the_training_targets_alone() -> None:
    shares = objective_of(unnamed_classes(3)).constant_output(torch.tensor([0, 0, 2])).exp()
    assert shares.sum().item() == pytest.approx(1)
    assert shares.argmax() == 0
    assert shares[1] > 0
    target = Target("regression", "delay", mean=10.0, scale=4.0)
    assert (
        objective_of(target)
        .predict(objective_of(target).constant_output(torch.tensor([1.0, 5.0]))[None])
        .item()
        == 3.0
    )
    assert COX.constant_output(Y).tolist() == [0.0]


def test_merits_are_in_the_unit_interval_and_finite() -> None:
    strange = torch.tensor([math.nan, 0.0, 1.0])
    for objective in (
        objective_of(unnamed_classes(2)),
        COX,
        objective_of(Target("regression", scale=2.0)),
    ):
        for name in objective.metric_names:
            value = strange[1:] if name in ("rmse", "mae", "loss") else strange
            merit = objective.utility(name, value)
            assert bool(((merit >= 0) & (merit <= 1)).all()), name


def test_a_headline_that_the_kind_does_not_have() -> None:
    with pytest.raises(
        UsageError, match=r"metric is 'aux' .*'auc'.*classification has acc, loss, auc"
    ):
        objective_of(unnamed_classes(2)).with_primary_metric("aux")
    with pytest.raises(UsageError, match="survival has concordance, loss"):
        COX.with_primary_metric("auc")
    assert objective_of(unnamed_classes(2)).with_primary_metric("auc") == ("auc", "acc", "loss")
