"""Local SGD against torch's own optimiser, and the rules that methods build on."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from equipoise.core import LocalTrainRequest, ProximalTerm, RngContext, TrainingConfig
from equipoise.training import batching
from equipoise.utils import rng
from helpers import largest_difference, small_task

HOW = TrainingConfig(epochs=3, lr=0.07, batch_size=8, weight_decay=0.01, momentum=0.6)
ENGINES = ["fit", "fit_stack"]


def _fit(task, engine, ids, **how):
    """The engine on these clients; gives stacks in either case."""
    params = {k: v.expand(len(ids), *v.shape) for k, v in task.init_params(5).items()}
    epochs, lr = torch.full((len(ids),), 3), torch.full((len(ids),), 0.07, dtype=torch.float64)
    when = RngContext(0, 4, how.pop("training", HOW))
    how = {"trainable": tuple(params), **how}
    if engine == "fit_stack":
        return task.fit_stack(ids, LocalTrainRequest(params, epochs, lr, **how), {}, when)[:2]
    outs = []
    for k in range(len(ids)):
        one = {
            key: ProximalTerm({n: v[k] for n, v in value.anchor.items()}, value.mu, value.anchor_lr)
            if isinstance(value, ProximalTerm)
            else {n: v[k] for n, v in value.items()}
            if key == "grad_correction"
            else value
            for key, value in how.items()
        }
        outs.append(
            task.fit(
                ids[k],
                LocalTrainRequest({n: v[k] for n, v in params.items()}, epochs[k], lr[k], **one),
                {},
                when,
            )[:2]
        )
    return tuple({n: torch.stack([o[i][n] for o in outs]) for n in outs[0][i]} for i in (0, 1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_equals_torch_sgd_with_momentum_and_weight_decay(engine, model):
    task, ids = small_task(model), torch.tensor([1, 4])
    got, _ = _fit(task, engine, ids)
    for k, client in enumerate(ids.tolist()):
        split = task.data.split(np.array([client]), "train")
        params = {n: p.clone().requires_grad_() for n, p in task.init_params(5).items()}
        optimiser = torch.optim.SGD(params.values(), lr=0.07, momentum=0.6, weight_decay=0.01)
        key = rng.keys(0, np.array([client]), 4, 0)
        orders = rng.permutations(key, split.size, 3)[0] + split.start[0]
        for order in orders:
            for first in range(0, len(order), 8):
                rows = torch.from_numpy(order[first : first + 8])
                optimiser.zero_grad()
                F.cross_entropy(
                    functional_call(task.module, params, (split.x[rows].double(),)), split.y[rows]
                ).backward()
                optimiser.step()
        assert (
            largest_difference(
                {n: v[k] for n, v in got.items()}, {n: p.detach() for n, p in params.items()}
            )
            < 1e-12
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_with_every_term_by_hand(engine):
    """p1 = p0 - lr (g + decay p0 + linear + strength (p0 - anchor)), and anchor1 = anchor + follow
    (p1 - anchor).
    """
    task, ids = small_task("linear"), torch.tensor([2, 3])
    training = TrainingConfig(epochs=1, lr=0.07, batch_size=10_000, weight_decay=0.01)
    start = {n: v.expand(2, *v.shape) for n, v in task.init_params(5).items()}
    anchor = {n: torch.full_like(v, 0.3) for n, v in start.items()}
    linear = {n: torch.full_like(v, -0.2) for n, v in start.items()}
    pull = ProximalTerm(anchor, torch.tensor(0.5).double(), torch.tensor(0.25).double())
    params = {k: v.expand(2, *v.shape) for k, v in task.init_params(5).items()}
    one_epoch = torch.ones(2, dtype=torch.int64)
    if engine == "fit_stack":
        fit = LocalTrainRequest(
            params,
            one_epoch,
            torch.full((2,), 0.07).double(),
            pull,
            linear,
            trainable=tuple(params),
        )
        got, moved, _ = task.fit_stack(ids, fit, {}, RngContext(0, 1, training))
    else:
        fit = LocalTrainRequest(
            {n: v[0] for n, v in params.items()},
            one_epoch[0],
            torch.tensor(0.07).double(),
            ProximalTerm({n: v[0] for n, v in anchor.items()}, 0.5, 0.25),
            {n: v[0] for n, v in linear.items()},
            trainable=tuple(params),
        )
        one, one_anchor, _ = task.fit(ids[0], fit, {}, RngContext(0, 1, training))
        got, moved = (
            {n: v[None] for n, v in one.items()},
            {n: v[None] for n, v in one_anchor.items()},
        )
    split = task.data.split(np.array([2]), "train")
    rows = slice(int(split.start[0]), int(split.start[0] + split.size[0]))
    x, y = split.x[rows].double(), split.y[rows]
    error = torch.softmax(torch.zeros(len(y), 4).double(), 1) - F.one_hot(
        y, 4
    )  # the model starts at zero
    gradient = error.T @ x / len(y)
    expected = -0.07 * (gradient + 0.01 * 0 - 0.2 + 0.5 * (0 - 0.3))
    assert torch.allclose(got["weight"][0], expected, atol=1e-14)
    assert torch.allclose(moved["weight"][0], 0.3 + 0.25 * (expected - 0.3), atol=1e-14)


@pytest.mark.parametrize(
    "how",
    [
        {"trainable": ("2.weight", "2.bias")},
        {"data_range": (0.5, 1.0)},
        {"steps_per_batch": 3},
        {"clamp": (-0.05, 0.05)},
        {"stream": 2},
        {"training": TrainingConfig(epochs=3, lr=0.07, batch_size=1000)},
    ],
    ids=str,
)
def test_both_engines_read_a_request_alike(how):
    task, ids = small_task("mlp"), torch.tensor([0, 2, 5])
    plain = _fit(task, "fit_stack", ids)[0]
    one, stack = (_fit(task, engine, ids, **how)[0] for engine in ENGINES)
    assert largest_difference(one, stack) < 1e-12
    assert largest_difference(plain, stack) > 1e-6  # the option does something


def test_blocks_that_do_not_move_stay_to_the_bit():
    task, ids = small_task("mlp"), torch.tensor([0, 1])
    got, _ = _fit(task, "fit_stack", ids, trainable=("2.weight", "2.bias"))
    start = task.init_params(5)
    assert all(torch.equal(got[n][0], start[n]) for n in ("0.weight", "0.bias"))
    assert not torch.equal(got["2.weight"][0], start["2.weight"])


PLAIN = TrainingConfig(epochs=3, lr=0.07, batch_size=8, weight_decay=0.01)


@pytest.mark.parametrize(
    ("model", "how", "rates"), [("mlp", HOW, 4), ("linear", PLAIN, 4), ("linear", PLAIN, 1)]
)
def test_clients_with_fewer_steps_stop_earlier(model, how, rates):
    """Unequal epochs and rates in one stack: each client gets exactly its own."""
    task, ids = small_task(model), torch.arange(4)
    params = {k: v.expand(4, *v.shape) for k, v in task.init_params(5).items()}
    epochs, lr = torch.tensor([2, 0, 5, 1]), torch.tensor([0.1, 0.1, 0.01, 0.2]).double()
    lr = lr if rates > 1 else torch.full_like(lr, 0.1)
    together, _, _ = task.fit_stack(
        ids,
        LocalTrainRequest(params, epochs, lr, trainable=tuple(params)),
        {},
        RngContext(0, 1, how),
    )
    for k in range(4):
        request = LocalTrainRequest(
            {n: v[k] for n, v in params.items()}, epochs[k], lr[k], trainable=tuple(params)
        )
        alone, _, _ = task.fit(ids[k], request, {}, RngContext(0, 1, how))
        assert largest_difference(alone, {n: v[k] for n, v in together.items()}) < 1e-12
    assert all(torch.equal(together[n][1], params[n][1]) for n in params)  # zero epochs


def test_a_plan_visits_every_row_once_an_epoch():
    sizes, epochs = np.array([5, 17, 8]), np.array([2, 1, 3])
    key = rng.keys(3, np.arange(3), 1, 0)
    plan = batching.plan_batches(key, sizes, epochs, 4)
    assert plan.steps.tolist() == [4, 5, 6]
    for k in range(3):
        seen = np.concatenate([plan.rows[s, k, : plan.counts[s, k]] for s in range(plan.steps[k])])
        assert np.bincount(seen, minlength=sizes[k]).tolist() == [epochs[k]] * sizes[k]


def test_a_clients_batches_do_not_depend_on_its_company():
    sizes = np.array([5, 17, 8])
    key = rng.keys(3, np.arange(3), 1, 0)
    together = batching.plan_batches(key, sizes, np.array([2, 2, 2]), 4)
    for k in range(3):
        alone = batching.plan_batches(key[k : k + 1], sizes[k : k + 1], np.array([2]), 4)
        for s in range(alone.steps[0]):
            count = together.counts[s, k]
            assert together.rows[s, k, :count].tolist() == alone.rows[s, 0, :count].tolist()
