"""Batch normalisation and dropout: by definition, on every executor, after a resume; statistics
stay or travel.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core import LocalTrainRequest, Method, ProximalTerm, RngContext
from equipoise.data.datasets.synthetic import Synthetic, SyntheticConfig
from equipoise.methods import all_methods
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedbn import FedBN
from equipoise.methods.fedrep import FedRep
from equipoise.methods.fedrod import FedRod
from equipoise.methods.pfedme import PFedMe
from equipoise.models.norm_dropout import BatchNorm, Dropout, with_reproducible_layers
from equipoise.privacy.config import PrivacyConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.training import batching
from equipoise.utils.errors import UsageError
from equipoise.wrappers.differential_privacy import with_differential_privacy
from helpers import SMALL, TRAINING, largest_difference, simulate

STATISTICS = ("1.running_mean", "1.running_var")


def net() -> nn.Sequential:
    torch.manual_seed(2)
    layers = (
        nn.Linear(5, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.GroupNorm(2, 8),
        nn.Linear(8, 4),
    )
    return nn.Sequential(*layers)


def task(module: nn.Module | None = None, clients: int = 6) -> ExamplesTask:
    data = Synthetic(SyntheticConfig(**{**SMALL, "samples": 57, "clients": clients}), 0)
    return ExamplesTask("synthetic", module or net(), data, TRAINING, torch.float64)


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.BatchNorm1d(3), (7, 3)), (nn.BatchNorm2d(3), (7, 3, 4, 5))]
)
def test_batch_normalisation_is_that_of_torch(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    theirs = layer.double().train()
    with torch.no_grad():
        theirs.weight.uniform_(0.5, 2)
        theirs.bias.normal_()
    ours = with_reproducible_layers(nn.Sequential(nn.Identity(), nn.Sequential(theirs)))[1][0]
    assert isinstance(ours, BatchNorm)
    ours.running_mean, ours.running_var = theirs.running_mean.clone(), theirs.running_var.clone()
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64) * 3 + 1
        ours.rows = torch.tensor(len(x))
        padded = torch.cat([x, x[:2] * 100])  # what lies behind a short batch takes no part
        assert torch.allclose(ours(padded)[: len(x)], theirs(x), atol=1e-12)
        assert torch.allclose(ours.running_var, theirs.running_var, atol=1e-12)
    ours.rows = torch.zeros(0, dtype=torch.int64)
    assert torch.allclose(ours(x), theirs.eval()(x), atol=1e-12)


def test_one_value_has_no_spread() -> None:
    ours = BatchNorm(nn.BatchNorm1d(2))
    ours.rows = torch.tensor(1)
    out = ours(torch.tensor([[3.0, 4.0]]))
    assert torch.allclose(out, torch.tensor([[3.0, 4.0]]), atol=1e-4)
    assert ours.running_var.tolist() == [1.0, 1.0]


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    layer = Dropout(0.3, False, 0)
    layer.key = torch.tensor(-77)
    x = torch.ones(400, 50)
    out = layer(x)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    assert float((out == 0).double().mean()) == pytest.approx(0.3, abs=0.01)
    assert torch.equal(layer(x[:10]), out[:10])  # padding behind changes nothing
    other = Dropout(0.3, False, 1)
    other.key = layer.key
    assert float(((other(x) == 0) & (out == 0)).double().mean()) == pytest.approx(0.09, abs=0.01)
    layer.key = torch.tensor(-76)
    assert float(((layer(x) == 0) & (out == 0)).double().mean()) == pytest.approx(0.09, abs=0.01)


def test_whole_channels_are_dropped() -> None:
    layer = Dropout(0.5, True, 0)
    layer.key = torch.tensor(5)
    out = layer(torch.ones(20, 6, 3, 3)).flatten(2)
    assert bool((out == out[..., :1]).all())
    assert 0 < float((out == 0).double().mean()) < 1


@pytest.mark.parametrize(
    "method", [FedAvg(), FedBN(), FedRep(head_epochs=1), PFedMe(inner_steps=2)]
)
def test_all_executors_agree(method: Method) -> None:
    loop, stacked = (
        simulate(method, task(), rounds=2, executor=executor) for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.params, stacked.params) < 1e-9
    assert largest_difference(loop.store.local_params, stacked.store.local_params) < 1e-9


def test_statistics_move_and_travel_or_stay() -> None:
    here = task()
    assert here.info.blocks["norm"] == ("1.weight", "1.bias", *STATISTICS)
    start = here.init_params(0)
    shared, kept = simulate(FedAvg(), here), simulate(FedBN(), here)
    for name in STATISTICS:
        assert not torch.equal(shared.params[name], start[name])
        assert torch.equal(kept.params[name], start[name])
        assert not torch.equal(kept.store.local_params[name][0], kept.store.local_params[name][1])
    norm = 8 * 8 * 4
    assert shared.logs[0].bytes.up - kept.logs[0].bytes.up == here.info.num_clients * norm


def test_the_mean_of_statistics_is_fedavgs() -> None:
    here = task()
    done = simulate(FedAvg(), here, rounds=1)
    sizes = here.num_examples(torch.arange(here.info.num_clients)).double()
    mean = (sizes[:, None] * done.store.local_params[STATISTICS[0]]).sum(0) / sizes.sum()
    assert torch.allclose(done.params[STATISTICS[0]], mean)


STEPPING = (
    "autopilot",
    "fedadam",
    "fedavgm",
    "feddyn",
    "fedexp",
    "fedhyper",
    "fedyogi",
    "scaffold",
)
FAR = {"pfedme": {"beta": 2.0}, "fedrecon": {"server_lr": 2.0}}


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in STEPPING), *FAR.items()])
def test_servers_that_step_average_statistics(name: str, options: dict[str, float]) -> None:
    """A variance that is extrapolated may become negative.

    Weights are by data size, or equal where a paper says so. Four clients are too few for the guard
    that limits those that point against the others.
    """
    sim = simulate(all_methods()[name](**options), task(clients=4), 3)
    sizes = sim.task.num_examples(torch.arange(sim.task.info.num_clients)).double()
    for weights in (sizes / sizes.sum(), torch.full_like(sizes, 1 / len(sizes))):
        means = {
            name: torch.tensordot(weights, sim.store.local_params[name], 1) for name in STATISTICS
        }
        if all(largest_difference(sim.params[name], mean) < 1e-12 for name, mean in means.items()):
            return
    pytest.fail("statistics are not the clients' mean")


def test_statistics_move_only_with_their_block() -> None:
    here = task()
    done = simulate(FedRep(keep="head", head_epochs=1), here, rounds=1)
    assert not torch.equal(done.params[STATISTICS[0]], here.init_params(0)[STATISTICS[0]])
    frozen = simulate(FedRep(keep="norm,backbone"), here, rounds=1)
    assert torch.equal(frozen.params[STATISTICS[0]], here.init_params(0)[STATISTICS[0]])


def test_frozen_normalisation_is_part_of_the_base() -> None:
    module = net()
    module[1].requires_grad_(False)
    module[1].running_mean += 2
    here = task(module)
    assert here.info.batch_stat_names == ()
    assert "norm" not in here.info.blocks
    x = here.example_inputs(4)
    assert torch.allclose(here.forward({}, x), task(module.eval()).forward({}, x))
    simulate(FedAvg(), here, rounds=1)
    assert torch.equal(here.module[1].running_mean, module[1].running_mean.double())


def test_a_run_that_is_cut_goes_on_with_the_same_masks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(40, 5)).astype(np.float32), rng.integers(0, 4, 40)) for _ in range(3)]
    given = eq.Task.from_datasets(rows, model=net())
    whole = eq.run(tmp_path / "whole", task=given, rounds=2)

    class Cut(Exception):
        pass

    def cut(log: object) -> None:
        if log.round == 1:  # type: ignore[attr-defined]
            raise Cut

    with pytest.raises(Cut):
        eq.run(tmp_path / "cut", task=given, rounds=2, checkpoint_every=1, on_round=cut)
    again = eq.Run(tmp_path / "cut").resume(task=given)
    one, other = whole.model().state_dict(), again.model().state_dict()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = nn.functional.dropout(self.fc(x), 0.5, self.training)
        return out


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Functional(), "use nn.Dropout layers"),
        (
            nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False)),
            "no running statistics",
        ),
        (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=None)), "momentum=None"),
        (nn.Sequential(nn.Linear(5, 4), nn.AlphaDropout(0.2)), "AlphaDropout"),
    ],
)
def test_what_cannot_be_repeated_is_one_sentence(module: nn.Module, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        task(module).check()


def test_methods_that_would_break_statistics_are_refused() -> None:
    here = task()
    with pytest.raises(UsageError, match="update the batch statistics"):
        FedRod().check(here, here.info.training)
    with pytest.raises(UsageError, match="variances negative"):
        with_differential_privacy(FedAvg(), PrivacyConfig(dp_clip=1.0)).check(
            here, here.info.training
        )


def test_without_batch_normalisation_fedbn_is_fedavg() -> None:
    bn, avg = (
        simulate(method, task(nn.Sequential(nn.Linear(5, 4)))) for method in (FedBN(), FedAvg())
    )
    assert largest_difference(bn.params, avg.params) == 0
    assert [log.bytes for log in bn.logs] == [log.bytes for log in avg.logs]


def test_the_anchor_of_frozen_statistics_is_their_value() -> None:
    """Statistics that a method does not train stay, and so does their anchor, on every path."""
    here = task()
    ids = torch.arange(here.info.num_clients)
    start = here.init_params(0)
    stack = {name: value.expand(len(ids), *value.shape) for name, value in start.items()}
    trainable = tuple(name for name in start if name not in STATISTICS)
    epochs = torch.full_like(ids, 2)
    lr = torch.full((len(ids),), 0.1, dtype=torch.float64)
    request = LocalTrainRequest(
        stack, epochs, lr, trainable=trainable, proximal=ProximalTerm(stack, 0.3, 0.1)
    )
    rng = RngContext(0, 1, here.info.training)
    params, anchor, _ = here.fit_stack(ids, request, {}, rng)
    for k in ids:
        one = batching.slice_request(request, int(k), len(ids))
        own, own_anchor, _ = here.fit(ids[k], one, {}, rng)
        for name in STATISTICS:
            assert torch.equal(own_anchor[name], start[name])
            assert torch.equal(anchor[name][k], start[name])
        assert largest_difference({n: v[k] for n, v in anchor.items()}, own_anchor) < 1e-12
        assert largest_difference({n: v[k] for n, v in params.items()}, own) < 1e-12
