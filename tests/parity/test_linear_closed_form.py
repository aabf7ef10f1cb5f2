"""The closed form of linear models against autograd, in float64."""

import pytest
import torch
from torch import nn

from equipoise.core import LocalTrainRequest, Method, ProximalTerm, RngContext, TrainingConfig
from equipoise.methods import all_methods
from equipoise.training.batched_sgd import PADDED_CLASS_BIAS, PaddedSgd
from helpers import largest_difference, simulate, small_task, three_classes

IDS = torch.tensor([0, 2, 3, 5])
METHODS = ["fedavg", "fedprox", "scaffold", "feddyn", "ditto", "pfedme", "fedala", "fedrod"]


def _request(**terms: object) -> LocalTrainRequest:
    """Four clients with models, epochs and rates of their own."""
    random = torch.Generator().manual_seed(7)
    shapes = {"weight": (4, 4, 5), "bias": (4, 4)}
    params = {
        name: torch.randn(shape, generator=random, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    lr = terms.pop("lr", torch.tensor([0.05, 0.1, 0.02, 0.07], dtype=torch.float64))
    return LocalTrainRequest(
        params, torch.tensor([2, 1, 3, 2]), lr, trainable=tuple(params), **terms
    )


def _tree(seed: int) -> dict[str, torch.Tensor]:
    """A random correction or anchor of four clients."""
    random = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(4, 4, 5, generator=random, dtype=torch.float64),
        "bias": torch.randn(4, 4, generator=random, dtype=torch.float64),
    }


MU = torch.tensor([0.5, 3.0, 0.0, 8.0], dtype=torch.float64)
FOLLOW = torch.tensor([0.1, 0.0, 0.4, 0.9], dtype=torch.float64)
TERMS = {
    "plain": {},
    "one rate for all": {"lr": torch.full((4,), 0.05, dtype=torch.float64)},
    "correction": {"grad_correction": _tree(1)},
    "anchor": {"proximal": ProximalTerm(_tree(2), 0.7)},
    "an anchor each": {"proximal": ProximalTerm(_tree(2), MU)},
    "moving anchors": {"proximal": ProximalTerm(_tree(2), 2.0, 0.3)},
    "moving anchors each": {
        "proximal": ProximalTerm(_tree(2), MU, FOLLOW),
        "grad_correction": _tree(3),
        "steps_per_batch": 3,
    },
}


@pytest.mark.parametrize("weight_decay", [0.0, 0.02])
@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_trained_models_and_anchors_are_those_of_autograd(terms, weight_decay):
    training = TrainingConfig(epochs=1, lr=0.1, batch_size=7, weight_decay=weight_decay)
    when = RngContext(0, 2, training)
    closed = small_task("linear", training).fit_stack(IDS, _request(**terms), {}, when)[:2]
    autograd = small_task("linear", training, closed_form=False)
    assert autograd.linear is None
    expected = autograd.fit_stack(IDS, _request(**terms), {}, when)[:2]
    assert largest_difference(closed[0], expected[0]) < 1e-12
    assert largest_difference(closed[1], expected[1]) < 1e-12
    assert bool(closed[1]) == ("proximal" in terms)


def test_the_proximal_term_keeps_padded_classes_at_probability_zero():
    """Ten times half the distance to an anchor: the bias of a padded class stays where it is."""
    term = ProximalTerm(_tree(2), 10.0, 0.5)
    when = RngContext(0, 1, TrainingConfig(epochs=1, lr=0.05, batch_size=5))
    request = _request(proximal=term, lr=torch.full((4,), 0.05, dtype=torch.float64))
    sgd = PaddedSgd(("weight", "bias"), request, when, None)
    x = torch.zeros(4, 5, 16, dtype=torch.float64)
    x[..., 5] = 1.0
    for _ in range(10):
        sgd.step(x, torch.zeros(4, 5, dtype=torch.int64), 0.2, {})
        sgd.move_anchor(4)
    assert torch.equal(
        sgd._models.weights[:, 5, 4:], torch.full((4, 12), PADDED_CLASS_BIAS, dtype=torch.float64)
    )


@pytest.mark.parametrize("name", METHODS)
def test_runs_of_methods_are_those_of_autograd(name: str) -> None:
    method: Method = all_methods()[name]()
    loop = simulate(method, small_task("linear"), 4, "loop", 0.7)
    for closed_form in (True, False):
        task = small_task("linear", closed_form=closed_form)
        stacked = simulate(method, task, 4, "stacked", 0.7)
        assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-12


def test_fed_rod_of_a_client_that_lacks_a_class() -> None:
    """The balanced softmax gives a class without rows the probability zero in both forms."""
    runs = [
        simulate(
            all_methods()["fedrod"](), three_classes([0, 0, 1], module=nn.Linear(2, 3)), 3, executor
        )
        for executor in ("loop", "stacked")
    ]
    assert runs[1].task.linear == ("weight", "bias")
    assert largest_difference(runs[0].state_dict(), runs[1].state_dict()) < 1e-13
