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
from equipoise.experiment.build import build_task
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
    task = eq.Task.from_name("synthetic", clients=5)
    assert built(task).info.num_clients == 5
    with pytest.raises(eq.UsageError, match=r"task 'synthetic' has no option 'client' .*'clients'"):
        eq.Task.from_name("synthetic", client=5)
    with pytest.raises(eq.UsageError, match="given twice, under two names"):
        eq.run(task=task, clients=4)
    with pytest.raises(eq.UsageError, match="did you mean 'synthetic'"):
        eq.Task.from_name("sinthetic")
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


def split_pairs() -> dict[str, tuple]:
    """Samples whose first number is their place in their client."""
    found = {}
    for name, n in CLIENTS.items():
        x = np.zeros((n, 6), np.float32)
        x[:, 0] = np.arange(n)
        y = np.arange(n) % 3
        found[name] = ((x[:20], y[:20]), (x[20:24], y[20:24]), (x[24:], y[24:]))
    return found


def test_splits_of_ones_own_are_kept() -> None:
    task = eq.Task.from_datasets(split_pairs(), model="linear", server_share=0.2)
    rows = task.row_splits(seed=3)
    assert rows["north"]["test"].tolist() == list(range(24, 30))
    assert rows["south"]["val"].tolist() == list(range(20, 24))
    assert len(rows["south"]["server"]) == 4
    assert sorted([*rows["south"]["train"], *rows["south"]["server"]]) == list(range(20))
    clients = torch.arange(2)
    assert built(task, seed=3).num_rows(clients, "test").tolist() == [6, 16]
    two = {name: (parts[0], parts[2]) for name, parts in split_pairs().items()}
    rows = eq.Task.from_datasets(two, model="linear").row_splits()
    assert len(rows["north"]["test"]) == 6
    assert len(rows["north"]["val"]) == 2


def test_drawn_splits_cover_every_sample_once_and_are_told() -> None:
    task = eq.Task.from_datasets(pairs(), model="linear")
    for name, parts in task.row_splits(seed=1).items():
        assert sorted(np.concatenate(list(parts.values()))) == list(range(CLIENTS[name]))
    with pytest.raises(eq.UsageError, match=r"not made by Task\.from_datasets"):
        eq.Task.from_name("synthetic").row_splits()


def test_numbers_are_regression_in_their_own_unit(tmp_path: Path) -> None:
    data = {name: (x, 1000 + 50 * x[:, 0].astype(np.float64)) for name, (x, _) in pairs().items()}
    task = eq.Task.from_datasets(data, model="linear")
    run = eq.run(tmp_path / "run", task=task, rounds=30, epochs=5, lr=0.1, seed=0)
    predicted = run.predict(data["north"][0], client="north")
    assert abs(predicted - data["north"][1]).max() < 60
    assert run.final.personal.rmse < 30


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": pairs()["north"], "b": split_pairs()["south"]}, "splits of their own"),
        ({"a": (np.zeros((9, 2)), np.full(9, np.nan))}, "not finite"),
        ({"a": (np.zeros((9, 2)), np.full(9, -1))}, "negative classes"),
        ({"a": (np.zeros((9, 2)), np.zeros((9, 2)))}, "labels of type"),
        ({"a": (np.zeros((9, 2)), np.zeros(8))}, "9 samples and 8 labels"),
        (
            {"a": (np.zeros((9, 2)), np.zeros(9, int)), "b": (np.zeros((9, 3)), np.zeros(9, int))},
            "different shapes",
        ),
    ],
)
def test_mistakes_in_datasets_are_named(data: dict, message: str) -> None:
    with pytest.raises(eq.UsageError, match=message):
        eq.Task.from_datasets(data, model="linear")


def test_data_sets_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets")
    data = {
        name: datasets.Dataset.from_dict({"pixels": x.tolist(), "label": y.tolist()})
        for name, (x, y) in pairs().items()
    }
    task = eq.Task.from_datasets(data, model="linear")
    plain = eq.Task.from_datasets(pairs(), model="linear")
    clients = np.arange(2)
    for name in ("train", "test"):
        got = built(task).data.split(clients, name)
        assert torch.equal(got.x, built(plain).data.split(clients, name).x)
    wrong = {"a": data["north"].rename_column("label", "answer")}
    with pytest.raises(eq.UsageError, match=r"has the columns .*select_columns"):
        eq.Task.from_datasets(wrong, model="linear")


def one_table() -> dict[str, list]:
    rng = np.random.default_rng(0)
    age = rng.integers(20, 80, 90)
    site = ["va" if k % 3 else "long beach" for k in range(90)]
    return {"site": site, "age": age.tolist(), "sex": list("fm" * 45), "ill": (age > 50).tolist()}


def test_one_frame_with_a_column_of_clients() -> None:
    pandas = pytest.importorskip("pandas")
    frames: dict[str, object] = {"pandas": pandas.DataFrame(one_table())}
    pyarrow = pytest.importorskip("pyarrow")
    frames["arrow"] = pyarrow.table(one_table())
    try:
        import polars

        frames["polars"] = polars.DataFrame(one_table())
    except ImportError:
        pass
    made = {
        kind: built(eq.Task.from_tables(frame, target="ill", client_column="site"))
        for kind, frame in frames.items()
    }
    for kind, task in made.items():
        assert task.info.client_names == ("long beach", "va"), kind
        x = task.data.split(np.arange(2), "train").x
        assert torch.equal(x, made["pandas"].data.split(np.arange(2), "train").x), kind
    with pytest.raises(eq.UsageError, match="client_column='site'"):
        eq.Task.from_tables(frames["pandas"], target="ill")
    with pytest.raises(eq.UsageError, match="did you mean 'site'"):
        eq.Task.from_tables(frames["pandas"], target="ill", client_column="sit")


def test_names_of_other_libraries_are_understood_in_errors(tmp_path: Path) -> None:
    with pytest.raises(eq.UsageError, match="did you mean 'lr'"):
        eq.run(tmp_path / "x", learning_rate=0.1)
