"""Frozen parameters: never move, never travel, and are held once however many clients there are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import equipoise as eq
from equipoise.data.datasets.synthetic import Synthetic, SyntheticConfig
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedper import FedPer
from equipoise.methods.fedrod import FedRod
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.pytree import tree_bytes
from helpers import SMALL, TRAINING, largest_difference, simulate


def net() -> nn.Sequential:
    """A frozen first layer, a body and a head that learn; a frozen bias in the middle."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    module[0].requires_grad_(False)
    module[2].bias.requires_grad_(False)
    return module


def task(fresh: bool = False, **options: object) -> ExamplesTask:
    data = Synthetic(SyntheticConfig(**{**SMALL, **options}), 0)
    return ExamplesTask("synthetic", net(), data, TRAINING, torch.float64, fresh=fresh)


def clients(count: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=(40, 5)).astype(np.float32), rng.integers(0, 4, 40)) for _ in range(count)
    ]


def test_only_what_learns_is_in_a_model_and_the_users_weights_are_where_it_starts() -> None:
    here, given = task(), net().double()
    assert set(here.init_params(7)) == {"2.weight", "4.weight", "4.bias"}
    assert all(
        torch.equal(value, given.get_parameter(name)) for name, value in here.init_params(7).items()
    )
    assert set(here.frozen) == {"0.weight", "0.bias", "2.bias"}
    assert here.info.blocks == {"backbone": ("2.weight",), "head": ("4.weight", "4.bias")}


def test_a_fresh_start_draws_what_learns_and_leaves_what_is_frozen() -> None:
    here, given = task(fresh=True), net().double()
    assert not torch.equal(here.init_params(7)["2.weight"], given[2].weight)
    assert all(torch.equal(value, given.get_parameter(name)) for name, value in here.frozen.items())


@pytest.mark.parametrize("method", [FedAvg(), FedPer(), FedRod()])
def test_a_frozen_layer_is_the_same_as_its_outputs_computed_before(
    method: FedAvg | FedPer | FedRod,
) -> None:
    """Training on x with a frozen first layer = training the rest on the first layer's outputs."""
    here = task()
    there = task()
    with torch.no_grad():
        there.module = nn.Sequential(*list(net().double().children())[2:])
    there._device_module = there.module
    there.prepare = lambda x: torch.tanh(
        x.double() @ here.frozen["0.weight"].T + here.frozen["0.bias"]
    )  # type: ignore[method-assign]
    blocks = {"backbone": ("0.weight",), "head": ("2.weight", "2.bias")}
    there.info = replace(there.info, blocks=blocks)
    there._map_forward()
    one, other = simulate(method, here), simulate(method, there)
    for name, value in one.params.items():
        layer, _, kind = name.partition(".")
        assert torch.allclose(value, other.params[f"{int(layer) - 2}.{kind}"], atol=1e-12)


def test_loop_and_stack_agree() -> None:
    loop, stacked = (
        simulate(FedPer(), task(), executor=executor) for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.params, stacked.params) < 1e-12
    assert largest_difference(loop.store.local_params, stacked.store.local_params) < 1e-12


def test_bytes_and_what_is_kept_of_clients_are_those_of_the_learned_part() -> None:
    here = task()
    done = simulate(FedAvg(), here, rounds=1)
    learned = tree_bytes(here.init_params(0))
    assert learned == 8 * (6 * 8 + 4 * 6 + 4)
    assert done.logs[0].bytes.down == done.logs[0].bytes.up == learned * here.info.num_clients
    assert tree_bytes(done.store.local_params) == learned * here.info.num_clients
    assert all(
        torch.equal(value, net().double().get_parameter(name))
        for name, value in here.frozen.items()
    )


def test_the_run_folder_holds_the_base_once_and_exports_are_whole(tmp_path: Path) -> None:
    given = net()
    run = eq.run(
        tmp_path / "run",
        method="fedper",
        task=eq.Task.from_datasets(clients(), model=given),
        rounds=2,
    )
    models = tmp_path / "run" / "models"
    assert load_file(models / "frozen.safetensors").keys() == {"0.weight", "0.bias", "2.bias"}
    personal = load_file(models / "personal.safetensors")
    assert personal.keys() == {"client_ids", "2.weight", "4.weight", "4.bias"}
    assert not any(
        "0.weight" in name
        for name in load_file(tmp_path / "run" / "checkpoint" / "last.safetensors")
    )
    mine = run.model(client=1)
    assert torch.equal(mine.state_dict()["0.weight"], given[0].weight)
    assert torch.equal(mine.state_dict()["4.bias"], personal["4.bias"][1])
    run.export(tmp_path / "one.safetensors", client=1)
    assert load_file(tmp_path / "one.safetensors").keys() == given.state_dict().keys()


def test_the_model_that_was_given_is_not_changed(tmp_path: Path) -> None:
    given = net()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    eq.run(tmp_path / "run", task=eq.Task.from_datasets(clients(), model=given), rounds=1)
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())
