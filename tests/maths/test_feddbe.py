"""FedDBE by definition: the first round, the regularised step, the shift, padding, and limits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.core import TrainingConfig
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.feddbe import FedDbe
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError
from helpers import WHOLE_BATCH, largest_difference, simulate, small_task, three_classes
from helpers_quadratic import heterogeneous

LABELS = [0, 0, 2, 1]


def data_of(task: ExamplesTask, client: int) -> tuple[Tensor, Tensor]:
    """The rows of a client of `three_classes`, whose server holds those of all clients."""
    x, y = task.data.server("test")
    rows = slice(client * len(LABELS), (client + 1) * len(LABELS))
    return x[rows], y[rows]


def representation(x: Tensor, params: list[Tensor]) -> Tensor:
    return torch.tanh(F.linear(x, params[0], params[1]))


def test_the_first_round_finds_the_consensus_and_keeps_the_model() -> None:
    task = three_classes(LABELS, clients=3)
    run = simulate(FedDbe(), task, 1)
    start = list(task.init_params(0).values())
    assert largest_difference(list(run.params.values()), start) == 0
    means = []
    for client in range(3):
        x, y = data_of(task, client)
        leaves = [value.clone().requires_grad_() for value in start]
        loss = F.cross_entropy(F.linear(representation(x, leaves), leaves[2], leaves[3]), y)
        gradients = torch.autograd.grad(loss, leaves)
        trained = [(p - 0.5 * g).detach() for p, g in zip(leaves, gradients, strict=True)]
        means.append(representation(x, trained).mean(0))
    assert largest_difference(run.server_state["consensus"], torch.stack(means).mean(0)) < 1e-14


def test_the_second_round_by_definition() -> None:
    task = three_classes(LABELS)
    run = simulate(FedDbe(kappa=7.0), task, 2)
    consensus = run.server_state["consensus"]
    x, y = data_of(task, 0)
    leaves = [value.clone().requires_grad_() for value in task.init_params(0).values()]
    shift = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    z = representation(x, leaves)
    loss = F.cross_entropy(F.linear(z + shift, leaves[2], leaves[3]), y)
    loss = loss + 7.0 * (0.5 * (z.mean(0) - consensus) ** 2).mean()
    gradients = torch.autograd.grad(loss, [*leaves, shift])
    new = [(p - 0.5 * g).detach() for p, g in zip([*leaves, shift], gradients, strict=True)]
    assert largest_difference(list(run.params.values()), new[:4]) < 1e-14
    assert largest_difference(run.store.state["shift"][0], new[4]) < 1e-14

    personal = {name: value[0] for name, value in run.personal_models()[1].items()}
    shifted = F.linear(representation(x, new) + new[4], new[2], new[3])
    assert largest_difference(task.forward(personal, x), shifted) < 1e-14


def test_without_regularisation_and_with_zero_shift_a_step_is_fedavgs() -> None:
    """The gradient at c = 0 of everything but c is FedAvg's: one step a round, one round later."""
    task = three_classes(LABELS)
    assert (
        largest_difference(
            simulate(FedDbe(kappa=0.0), task, 2).params, simulate(FedAvg(), task, 1).params
        )
        < 1e-14
    )


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_padding_of_short_batches_does_not_count(executor: str) -> None:
    """Seven rows in batches of four: both executors use the mean of the real rows."""
    training = TrainingConfig(epochs=2, lr=0.1, batch_size=4)
    task = three_classes([0, 1, 2, 0, 1, 2, 0], clients=2)
    task = ExamplesTask("tiny", task.module, task.data, training, torch.float64)
    reference = simulate(FedDbe(), task, 3, executor="loop")
    run = simulate(FedDbe(), task, 3, executor=executor)
    assert largest_difference(run.params, reference.params) < 1e-12
    assert largest_difference(run.store.state["shift"], reference.store.state["shift"]) < 1e-12


def test_the_shift_fits_the_clients_own_classes() -> None:
    training = TrainingConfig(epochs=5, lr=0.1, batch_size=8)
    log = simulate(FedDbe(kappa=1.0), small_task(training=training, model="mlp"), 15).logs[-1]
    assert log.personal.loss < log.trained.loss


def test_unsound_models_and_tasks_are_refused() -> None:
    with pytest.raises(UsageError, match="labelled"):
        FedDbe().check(heterogeneous(WHOLE_BATCH), WHOLE_BATCH)
    one_layer = three_classes(LABELS, module=nn.Sequential(nn.Linear(2, 3)))
    with pytest.raises(UsageError, match="one layer"):
        FedDbe().check(one_layer, WHOLE_BATCH)
    no_bias = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3, bias=False))
    with pytest.raises(UsageError, match="with a bias"):
        FedDbe().check(three_classes(LABELS, module=no_bias), WHOLE_BATCH)
