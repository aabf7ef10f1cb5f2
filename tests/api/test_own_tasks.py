"""Tasks as values: tables, arrays and modules of one's own, whose weights are kept."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equipoise as eq
from equipoise.experiment.runner import build_task
from equipoise.settings.loading import settings_of

CLIENTS = {"north": 30, "south": 40}


def pairs(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=(n, 6)).astype(np.float32), np.arange(n) % 3)
        for name, n in CLIENTS.items()
    }


def built(task: eq.Task, **options: object):
    return build_task(settings_of({"task": task.spec, **task.options, **options}))


class Scaled(nn.Module):
    """A layer with a bare parameter, beside one that knows how to draw itself anew."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((6,), 2.0))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.scale)


def test_the_weights_of_a_module_are_kept() -> None:
    net = Scaled()
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    start = built(eq.Task.from_datasets(pairs(), model=net), seed=7).init_params(7)
    assert all(torch.equal(start[name], value) for name, value in before.items())
    assert start["head.weight"] is not net.head.weight


def test_a_fresh_start_is_asked_for_and_is_the_seeds() -> None:
    net = nn.Linear(6, 3)
    task = eq.Task.from_datasets(pairs(), model=net, fresh=True)
    one, same, other = (built(task, seed=s).init_params(s)["weight"] for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one, net.weight)
    with pytest.raises(
        eq.UsageError, match=r"parameter 'scale' cannot be drawn anew, .*fresh=False"
    ):
        built(eq.Task.from_datasets(pairs(), model=Scaled(), fresh=True))


def test_a_function_draws_under_the_seed() -> None:
    task = eq.Task.from_datasets(pairs(), model=lambda shape, classes: nn.Linear(shape[0], classes))
    one, same, other = (built(task, seed=s).init_params(s)["weight"] for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_what_a_model_may_do() -> None:
    class Dropping(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(super().forward(x), 0.5)

    class Looking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum().item() > 0 else super().forward(-x)

    with pytest.raises(eq.UsageError, match="other outputs when asked again"):
        built(eq.Task.from_datasets(pairs(), model=Dropping(6, 3)))
    assert not built(eq.Task.from_datasets(pairs(), model=Looking(6, 3))).info.stackable


def test_a_model_that_cannot_be_mapped_is_trained_one_by_one(tmp_path: Path) -> None:
    class Looking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.shape[0] >= int(x[0, 0].item() > -100) else x

    torch.manual_seed(0)
    looking, plain = Looking(6, 3), nn.Linear(6, 3)
    plain.load_state_dict(looking.state_dict())
    losses = [
        eq.run(
            tmp_path / name, task=eq.Task.from_datasets(pairs(), model=net), rounds=2, lr=0.1
        ).final.global_.loss
        for name, net in (("looking", looking), ("plain", plain))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_tasks_are_values_and_check_their_options() -> None:
    task = eq.Task.named("synthetic", clients=5)
    assert built(task).info.num_clients == 5
    with pytest.raises(eq.UsageError, match=r"task 'synthetic' has no option 'client' .*'clients'"):
        eq.Task.named("synthetic", client=5)
    with pytest.raises(eq.UsageError, match="given twice, under two names"):
        eq.run(task=task, clients=4)
    with pytest.raises(eq.UsageError, match="did you mean 'synthetic'"):
        eq.Task.named("sinthetic")
    with pytest.raises(eq.UsageError, match=r"give a name, or an equipoise\.Task"):
        eq.run(task=5)  # type: ignore[arg-type]


def columns(rng: np.random.Generator, n: int = 40) -> dict[str, list[object]]:
    age = rng.normal(50, 10, n).round(2)
    return {
        "age": age.tolist(),
        "colour": rng.choice(["red", "blue"], n).tolist(),
        "ill": ["yes" if a > 50 else "no" for a in age],
    }


def test_tables_in_memory_are_read_as_files_are(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra data is not installed")
    rng = np.random.default_rng(0)
    tables = {name: columns(rng) for name in ("va", "cleveland")}
    for name, table in tables.items():
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([table.keys(), *zip(*table.values(), strict=True)])
    folder = eq.Task.from_folder(tmp_path, target="ill")
    memory = eq.Task.from_tables(tables, target="ill", target_type="classification")
    arrow = eq.Task.from_tables(
        {name: pyarrow.table(table) for name, table in tables.items()}, target="ill"
    )
    scores = [
        eq.run(tmp_path / f"run{k}", task=task, rounds=2, seed=3).final.personal
        for k, task in enumerate((folder, memory, arrow))
    ]
    assert scores[0] == scores[1] == scores[2]
    assert built(memory).info.client_names == ("cleveland", "va")
    assert built(memory).info.class_names == ("no", "yes")
    with pytest.raises(eq.UsageError, match="target_type is 'ordinal': must be"):
        eq.Task.from_tables(tables, target="ill", target_type="ordinal")
    with pytest.raises(eq.UsageError, match="the table of client 'x' is a int"):
        eq.Task.from_tables({"x": 5}, target="ill")
    assert built(eq.Task.from_tables({"a/b": tables["va"]}, target="ill")).info.client_names == (
        "a/b",
    )


def test_predictions_go_through_the_columns_of_training(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra data is not installed")
    rng = np.random.default_rng(0)
    tables = {name: columns(rng, 60) for name in ("cleveland", "va")}
    run = eq.run(
        tmp_path / "run", task=eq.Task.from_tables(tables, target="ill"), rounds=30, lr=0.3
    )
    new = {"colour": ["red", "blue"], "age": [80.0, 20.0]}  # another order of columns, no target
    for client in (None, "va", 0):
        assert run.predict(new, client=client).tolist() == ["yes", "no"]
    shares = run.predict(new, client="va", probabilities=True)
    assert shares.shape == (2, 2)
    assert shares.sum(1) == pytest.approx(1)
    age = built(run.task).preparation.preprocessor.encoders[
        0
    ]  # standardised by hand: mean and scale of the training rows
    x = np.array([[(80 - age.mean) / age.scale, 1], [(20 - age.mean) / age.scale, 0]], np.float32)
    logits = run.model("va")(torch.from_numpy(x))
    assert shares == pytest.approx(logits.softmax(-1).detach().numpy(), abs=1e-6)
    with pytest.raises(eq.UsageError, match="lack columns that the model needs: 'colour'"):
        run.predict({"age": [1.0]})
    assert run.predict({"colour": ["red", "green"], "age": [80.0, None]})[0] == "yes"
    with pytest.raises(eq.UsageError, match=r"no client 'vaa' \(did you mean 'va'"):
        run.model("vaa")
