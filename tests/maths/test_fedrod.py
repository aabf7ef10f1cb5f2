import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equipoise.core import TrainingConfig
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedrod import FedRod
from equipoise.utils.errors import UsageError
from helpers import WHOLE_BATCH, largest_difference, simulate, small_task, three_classes
from helpers_quadratic import heterogeneous


def test_two_steps_by_definition_with_a_class_that_the_client_lacks() -> None:
    labels = [0, 0, 0, 1]
    task = three_classes(labels)
    run = simulate(FedRod(), task, 2)
    x, y = task.data.server("test")
    counts = torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)
    f_w, f_b, g_w, g_b = (p.clone() for p in task.init_params(0).values())
    p_w, p_b = torch.zeros_like(g_w), torch.zeros_like(g_b)
    for _ in range(2):
        leaves = [t.detach().requires_grad_() for t in (f_w, f_b, g_w, g_b, p_w, p_b)]
        features = torch.tanh(F.linear(x, leaves[0], leaves[1]))
        generic = F.linear(features, leaves[2], leaves[3])
        weighted = counts * generic.exp()
        balanced = -(weighted[range(4), y] / weighted.sum(-1)).log().mean()
        total = F.linear(features.detach(), leaves[4], leaves[5]) + generic.detach()
        own = F.cross_entropy(total, y)
        gradients = (
            *torch.autograd.grad(balanced, leaves[:4]),
            *torch.autograd.grad(own, leaves[4:]),
        )
        f_w, f_b, g_w, g_b, p_w, p_b = (
            (t - 0.5 * d).detach() for t, d in zip(leaves, gradients, strict=True)
        )
    assert largest_difference(list(run.params.values()), [f_w, f_b, g_w, g_b]) < 1e-14
    assert largest_difference([v[0] for v in run.store.state["P"].values()], [p_w, p_b]) < 1e-14

    personal = {name: value[0] for name, value in run.personal_models()[1].items()}
    features = torch.tanh(F.linear(x, f_w, f_b))
    both = F.linear(features, g_w, g_b) + F.linear(features, p_w, p_b)
    assert largest_difference(task.forward(personal, x), both) < 1e-14


def test_with_equal_class_counts_the_generic_model_is_fedavgs() -> None:
    task = three_classes([0, 1, 2, 2, 1, 0], clients=3)
    fedrod, fedavg = simulate(FedRod(), task, 3), simulate(FedAvg(), task, 3)
    assert largest_difference(fedrod.params, fedavg.params) < 1e-14
    assert [log.bytes for log in fedrod.logs] == [log.bytes for log in fedavg.logs]
    assert fedrod.logs[-1].global_ == pytest.approx(fedavg.logs[-1].global_, abs=1e-12)


def test_personal_heads_fit_the_clients_own_classes_better() -> None:
    log = simulate(
        FedRod(), small_task(training=TrainingConfig(epochs=5, lr=0.1, batch_size=8)), 15
    ).logs[-1]
    assert log.personal.loss < log.trained.loss


def test_a_model_of_one_layer_is_all_head() -> None:
    """The backbone is the identity: one step of both heads, from zero, by definition."""
    task = three_classes([0, 0, 0, 1], module=nn.Sequential(nn.Linear(2, 3)))
    FedRod().check(task, WHOLE_BATCH)
    run = simulate(FedRod(), task, 1)
    x, y = task.data.server("test")
    start = task.init_params(0)
    counts = torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)
    generic = [value.clone().requires_grad_() for value in start.values()]
    own = [torch.zeros_like(value).requires_grad_() for value in start.values()]
    logits = F.linear(x, *generic)
    balanced = F.cross_entropy(logits + counts.log(), y)
    summed = F.cross_entropy(logits.detach() + F.linear(x, *own), y)
    steps = torch.autograd.grad(balanced, generic), torch.autograd.grad(summed, own)
    G = [(value - 0.5 * step).detach() for value, step in zip(generic, steps[0], strict=True)]
    P = [(value - 0.5 * step).detach() for value, step in zip(own, steps[1], strict=True)]
    assert largest_difference(list(run.params.values()), G) < 1e-14
    assert largest_difference([value[0] for value in run.store.state["P"].values()], P) < 1e-14
    personal = [value[0] for value in run.personal_models()[1].values()]
    assert largest_difference(personal, [g + p for g, p in zip(G, P, strict=True)]) < 1e-14


def test_unsound_models_and_tasks_are_refused() -> None:
    with pytest.raises(UsageError, match="labelled"):
        FedRod().check(heterogeneous(WHOLE_BATCH), WHOLE_BATCH)

    class DeepHead(nn.Sequential):
        blocks = {  # noqa: RUF012
            "backbone": ("0.weight", "0.bias"),
            "head": ("1.weight", "1.bias", "2.weight", "2.bias"),
        }

    deep = DeepHead(nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    with pytest.raises(UsageError, match="one linear layer"):
        FedRod().check(three_classes([0, 1, 2], module=deep), WHOLE_BATCH)
