"""The user's own tables, arrays, data sets and modules; and the examples that show them."""

import csv
import runpy
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import equipoise
from equipoise.core.errors import UsageError
from equipoise.data import tables
from equipoise.runs.running import build_task
from equipoise.settings.config import Settings

ROOT = Path(__file__).parents[2]


def write_csv(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def clinic(rng, n=30):
    ages = rng.normal(50, 10, n).round(2)
    return [[age, rng.choice(["red", "blue"]), int(rng.integers(0, 2)), "old" if age > 50 else "young"] for age in ages]


HEADER = ["age", "colour", "flag", "label"]


def own(data, **options):
    return build_task(Settings.of({"task": "own", "data": str(data), "rounds": 1, **options}))


def test_one_file_a_client(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("b", "a", "c"):
        write_csv(tmp_path / f"{name}.csv", HEADER, clinic(rng))
    rows, names, kinds = tables.read(tmp_path, "label", "client", ())
    assert names == ["a", "b", "c"]
    assert kinds == [("age", None), ("colour", ["blue", "red"]), ("flag", None)]
    assert rows.x.shape == (90, 4)
    assert rows.classes == 2
    assert (rows.x[:, 1] + rows.x[:, 2] == 1).all()  # one column a value
    assert ((rows.x[:, 0] > 50) == (rows.y == 0)).all()  # 'old' comes before 'young'
    task = own(tmp_path)
    train = task.data.split(np.arange(3), "train").x
    assert train.mean(0).abs().max() < 1e-5
    assert (train.std(0, correction=0) - 1).abs().max() < 1e-5


def test_parquet_and_one_file_with_a_client_column(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    columns = {"who": ["x"] * 20 + ["y"] * 25, "f": rng.normal(size=45), "label": rng.integers(3, 6, 45)}
    parquet.write_table(pyarrow.table(columns), tmp_path / "all.parquet")
    rows, names, kinds = tables.read(tmp_path / "all.parquet", "label", "who", ())
    assert names == ["x", "y"]
    assert np.bincount(rows.owner).tolist() == [20, 25]
    assert kinds == [("f", None)]
    assert (rows.y == columns["label"] - 3).all()
    assert own(tmp_path / "all.parquet", client_column="who").clients == 2


def test_categories_decimals_and_capital_suffixes_are_read(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "client": ["x", "y"] * 20,
        "colour": pyarrow.array(["red", "blue"] * 20).dictionary_encode(),
        "price": pyarrow.array([Decimal("1.25"), Decimal("2.5")] * 20),
        "label": pyarrow.array(["no", "yes"] * 20).dictionary_encode(),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "ALL.PARQUET")
    rows, _, kinds = tables.read(tmp_path / "ALL.PARQUET", "label", "client", ())
    assert kinds == [("colour", ["blue", "red"]), ("price", None)]
    assert rows.x[:2].tolist() == [[0, 1, 1.25], [1, 0, 2.5]]
    assert rows.y[:2].tolist() == [0, 1]


def test_the_server_may_have_a_file_of_its_own(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b", "server"):
        write_csv(tmp_path / f"{name}.csv", HEADER, clinic(rng, 40))
    data = own(tmp_path).data
    assert data.clients == 2
    assert sum(len(data.server(name)[1]) for name in ("public", "test")) == 40
    write_csv(tmp_path / "server.csv", HEADER, [*clinic(rng, 3), [50.0, "green", 0, "old"]])
    with pytest.raises(UsageError, match="'colour' holds a text that no client has in row 3 of the server's file"):
        own(tmp_path)
    (tmp_path / "server.csv").unlink()
    data = own(tmp_path).data
    assert sum(len(data.server(name)[1]) for name in ("public", "test")) == 8  # a tenth of each client's rows
    held = sum(int(data.split(np.arange(2), name).size.sum()) for name in ("train", "val", "test"))
    assert held == 72


@pytest.mark.parametrize(
    ("header", "row", "options", "words"),
    [
        (["age", "y"], [1, 2], {}, "no column 'label'"),
        (["age", "lable"], [1, 2], {}, "did you mean 'lable'"),
        (["age", "label"], [1.0, 0.25], {}, "measurements, not classes"),
        (["age", "label"], [1.0, 1], {}, "one value only"),
        (["label"], [1], {}, "no feature columns"),
        (["age", "label"], ["", 1], {}, "no value in row 0"),
        (["age", "label"], ["inf", 1], {}, "NaN or infinity in row 0"),
        (["day", "label"], ["2020-01-01", 1], {}, "not numbers or texts"),
        (["age", "label"], [1, 1], {"ignore_columns": "agee"}, "did you mean 'age'"),
    ],
)
def test_bad_tables_are_one_sentence(tmp_path, header, row, options, words):
    other = [v if v != "" else 2.0 for v in row]
    rows = [row] * 20 + ([[*other[:-1], 7]] * 20 if words not in ("one value only",) else [])
    write_csv(tmp_path / "a.csv", header, rows)
    with pytest.raises(UsageError, match=words):
        own(tmp_path, **options)


def test_bad_folders_are_one_sentence(tmp_path):
    rng = np.random.default_rng(0)
    for data, words in (("", "needs --data"), (tmp_path / "no", "no file or folder"), (tmp_path, "holds no CSV")):
        with pytest.raises(UsageError, match=words):
            own(data)
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(UsageError, match="cannot be read"):
        own(tmp_path)
    write_csv(tmp_path / "a.csv", HEADER, clinic(rng))
    write_csv(tmp_path / "b.csv", [*HEADER[:-1], "result"], clinic(rng))
    with pytest.raises(UsageError, match=r"b.csv' has other columns than .*label, result"):
        own(tmp_path)
    write_csv(tmp_path / "b.csv", HEADER, clinic(rng, 5))
    with pytest.raises(UsageError, match=r"client 1 \('b'\) has 5 rows"):
        own(tmp_path)
    rows = clinic(rng)
    for column, words in ((0, "column 'age'"), (1, "column 'colour'"), (3, "label column 'label'")):
        gap = [["" if (i, k) == (7, column) else value for k, value in enumerate(row)] for i, row in enumerate(rows)]
        write_csv(tmp_path / "b.csv", HEADER, gap)
        with pytest.raises(UsageError, match=f"{words} has no value in row 7 of file 'b'"):
            own(tmp_path)
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00no table\x00\n\x01")
    with pytest.raises(UsageError, match=r"cannot be read: .*codec"):
        own(tmp_path)
    write_csv(tmp_path / "b.csv", HEADER, [[1.0, f"text {i}", 0, "old"] for i in range(60)])
    with pytest.raises(UsageError, match="column 'colour' holds 62 different texts"):
        own(tmp_path)
    assert own(tmp_path, ignore_columns="colour").data.shape == (2,)


# --- from Python -----------------------------------------------------------------------------------------------------


def _clients(count=3, n=40):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, 6)), rng.integers(0, 3, n)) for _ in range(count)]


def built(clients, model, **how):
    return build_task(Settings.of({"task": equipoise.Task.from_datasets(clients, model=model, **how).spec}))


def test_arrays_tensors_and_data_sets_mean_the_same(tmp_path):
    pairs = _clients()
    forms = {
        "arrays": pairs,
        "tensors": [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in pairs],
        "sets": [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in pairs],
    }
    results = []
    for name, clients in forms.items():
        task = equipoise.Task.from_datasets(clients, model=nn.Linear(6, 3), fresh=True)
        results.append(equipoise.run(tmp_path / name, task=task, rounds=2, lr=0.1).final.global_.loss)
    assert results[0] == results[1] == results[2]


def test_tensors_as_they_come(tmp_path):
    pairs = [(torch.from_numpy(x).bfloat16().requires_grad_(), torch.from_numpy(y).int()) for x, y in _clients()]
    assert built(iter(pairs), "linear").clients == 3
    with pytest.raises(UsageError, match=r"the server has samples of shape \(5,\), clients of \(6,\)"):
        built(pairs, "linear", server=(np.zeros((4, 5)), np.zeros(4, int)))


def test_a_module_a_builder_or_a_name(tmp_path):
    for name, model in (
        ("module", nn.Linear(6, 3)),
        ("builder", lambda shape, k: nn.Linear(shape[0], k)),
        ("n", "mlp"),
    ):
        task = equipoise.Task.from_datasets(_clients(), model=model, server=_clients(1)[0])
        assert equipoise.run(tmp_path / name, task=task, rounds=1).final.rounds == 1


def test_bytes_become_images_and_whole_numbers_tokens():
    rng = np.random.default_rng(0)
    images = [(rng.integers(0, 256, (20, 8, 8, 3)).astype(np.uint8), rng.integers(0, 2, 20)) for _ in range(2)]
    data = built(images, "cnn").data
    assert data.shape == (3, 8, 8)
    assert data.form.prepare(data.server("test")[0], torch.float32).max() <= 1
    tokens = [(rng.integers(0, 5, (20, 7)), rng.integers(0, 5, 20)) for _ in range(2)]
    assert built(tokens, nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(28, 5))).clients == 2


@pytest.mark.parametrize(
    ("clients", "model", "words"),
    [
        ([], nn.Linear(6, 3), "has no clients"),
        ([(np.zeros((5, 6)), np.zeros(4, int))], nn.Linear(6, 3), "5 samples and 4 labels"),
        ([(np.zeros((20, 6)), np.zeros(20))], nn.Linear(6, 3), "whole numbers"),
        ([(np.zeros((20, 6)), np.zeros(20, int)), (np.zeros((20, 5)), np.zeros(20, int))], "mlp", "different shapes"),
        (_clients(), nn.Linear(7, 3), "does not take samples of shape"),
        (_clients(), nn.Linear(6, 4), "3 classes"),
        (_clients(), nn.Linear(6, 3).requires_grad_(False), "frozen parameters only"),
        (_clients(), nn.Sequential(nn.Unflatten(1, (2, 3)), nn.LSTM(3, 3, batch_first=True)), "gives a tuple"),
        (_clients(), "mpl", "did you mean 'mlp'"),
        ([TensorDataset(torch.zeros(0, 6), torch.zeros(0))], nn.Linear(6, 3), "0 samples and 0 labels"),
        ([(np.full((20, 6), "a"), np.zeros(20, int))], nn.Linear(6, 3), "must be numbers"),
        ([(None, None)], nn.Linear(6, 3), "client 0 has samples of type object"),
        ([(x for x in range(3))], nn.Linear(6, 3), "neither a pair"),
        ([[{"x": 1, "y": 0}] * 20], nn.Linear(6, 3), "neither a pair"),
    ],
)
def test_what_cannot_work_is_one_sentence(clients, model, words):
    with pytest.raises(UsageError, match=words):
        built(clients, model)


@pytest.mark.parametrize("name", ["tabular", "images", "text"])
def test_examples_run_and_are_short(tmp_path, name, capsys):
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 60
    runpy.run_path(str(path))["main"](str(tmp_path), "1")
    assert "personal models" in capsys.readouterr().out
