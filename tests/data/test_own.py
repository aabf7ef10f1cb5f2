"""The user's own arrays, data sets and modules; and the examples that show them.

Tables are in tests/tables.
"""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import equipoise
from equipoise.experiment.build import build_task
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError

ROOT = Path(__file__).parents[2]


# --- from Python ----------------------------------------------------------------------------------


def _clients(count=3, n=40):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, 6)), rng.integers(0, 3, n)) for _ in range(count)]


def built(clients, model, **how):
    return build_task(
        ExperimentConfig.from_options(
            {"task": equipoise.Task.from_datasets(clients, model=model, **how).spec}
        )
    )


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
        results.append(
            equipoise.run(tmp_path / name, task=task, rounds=2, lr=0.1).final.global_.loss
        )
    assert results[0] == results[1] == results[2]


def test_tensors_as_they_come(tmp_path):
    pairs = [
        (torch.from_numpy(x).bfloat16().requires_grad_(), torch.from_numpy(y).int())
        for x, y in _clients()
    ]
    assert built(iter(pairs), "linear").info.num_clients == 3
    with pytest.raises(UsageError, match=r"has samples of different shapes: \[\(5,\), \(6,\)\]"):
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
    images = [
        (rng.integers(0, 256, (20, 8, 8, 3)).astype(np.uint8), rng.integers(0, 2, 20))
        for _ in range(2)
    ]
    data = built(images, "cnn").data
    assert data.shape == (3, 8, 8)
    assert data.transform.prepare(data.server("test")[0], torch.float32).max() <= 1
    tokens = [(rng.integers(0, 5, (20, 7)), rng.integers(0, 5, 20)) for _ in range(2)]
    assert (
        built(
            tokens, nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(28, 5))
        ).info.num_clients
        == 2
    )


@pytest.mark.parametrize(
    ("clients", "model", "words"),
    [
        ([], nn.Linear(6, 3), "has no clients"),
        ([(np.zeros((5, 6)), np.zeros(4, int))], nn.Linear(6, 3), "5 samples and 4 labels"),
        ([(np.zeros((20, 6)), np.zeros(20))], nn.Linear(6, 3), "one number for regression"),
        (
            [(np.zeros((20, 6)), np.zeros(20, int)), (np.zeros((20, 5)), np.zeros(20, int))],
            "mlp",
            "different shapes",
        ),
        (_clients(), nn.Linear(7, 3), "does not take samples of shape"),
        (_clients(), nn.Linear(6, 4), "3 classes"),
        (_clients(), nn.Linear(6, 3).requires_grad_(False), "frozen parameters only"),
        (
            _clients(),
            nn.Sequential(nn.Unflatten(1, (2, 3)), nn.LSTM(3, 3, batch_first=True)),
            "gives a tuple",
        ),
        (_clients(), "mpl", "did you mean 'mlp'"),
        (
            [TensorDataset(torch.zeros(0, 6), torch.zeros(0))],
            nn.Linear(6, 3),
            "0 samples and 0 labels",
        ),
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
def test_examples_run(tmp_path, name, capsys):
    path = ROOT / "examples" / f"{name}.py"
    runpy.run_path(str(path))["main"](str(tmp_path), "1")
    assert "personal models" in capsys.readouterr().out


def test_a_base_that_the_user_froze_takes_adapters(tmp_path):
    """The adapters are what learns, so frozen parameters only are no reason to refuse the base."""
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).requires_grad_(False)
    task = equipoise.Task.from_datasets(_clients(), model=net, adapter="rank=4")
    assert equipoise.run(tmp_path / "task", task=task, rounds=1).final.rounds == 1
    plain = equipoise.Task.from_datasets(_clients(), model=net)
    run = equipoise.run(tmp_path / "run", task=plain, rounds=1, adapter="rank=4")
    assert run.final.rounds == 1
