"""The published sets as tasks: what the server and the clients hold, and that every executor learns
the same.
"""

import json
import warnings

import numpy as np
import pytest
import torch

from data import files
from equipoise.core import TrainingConfig
from equipoise.data.federated_dataset import Federation
from equipoise.data.transforms import PixelTransform, TokenTransform
from equipoise.experiment.build import build_task
from equipoise.methods import find_method
from equipoise.models import MODELS, blocks_of
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate

TRAINING = TrainingConfig(epochs=2, lr=0.05, batch_size=8, weight_decay=1e-3)


def small_federation(kind: str, clients: int = 3) -> Federation:
    """Images or characters, nine to twelve rows a client."""
    rng, sizes = np.random.default_rng(0), np.arange(9, 9 + clients)

    def rows(n):
        x = rng.integers(0, 12, (n, 10)) if kind == "text" else rng.integers(0, 256, (n, 12, 12, 3))
        return torch.from_numpy(x.astype(np.uint8)), torch.from_numpy(rng.integers(0, 12, n))

    splits = {name: (*rows(int(sizes.sum())), sizes) for name in ("train", "val", "test")}
    form = TokenTransform() if kind == "text" else PixelTransform((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    return Federation(splits, {name: rows(7) for name in ("public", "test")}, 12, form)


def small_task(model: str) -> ExamplesTask:
    data = small_federation("text" if model == "lstm" else "images")
    return ExamplesTask(
        "small", MODELS[model](data.shape, data.classes), data, TRAINING, torch.float64
    )


@pytest.mark.parametrize(
    "model", ["cnn", "mlp", "linear", "lstm", pytest.param("resnet18", marks=pytest.mark.slow)]
)
def test_executors_agree_on_every_model(model):
    method = find_method("fedprox")()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # vmap warns where it falls back to a slow loop
        runs = [
            simulate(method, small_task(model), 1, executor) for executor in ("loop", "stacked")
        ]
    assert largest_difference(runs[0].state_dict(), runs[1].state_dict()) < 1e-9


@pytest.mark.parametrize(
    "model", ["cnn", "mlp", "lstm", pytest.param("resnet18", marks=pytest.mark.slow)]
)
def test_several_heads_on_one_body_score_as_whole_models(model):
    task, ids = small_task(model), torch.arange(3)
    models = [
        {name: w.expand(3, *w.shape) for name, w in task.init_params(seed).items()}
        for seed in (0, 1)
    ]
    heads = {
        name: torch.stack([tree[name] for tree in models], 1) for name in task.info.blocks["head"]
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = task.evaluate_heads_stack(ids, models[0], heads, "val")
    for k, tree in enumerate(models):
        whole = models[0] | {name: tree[name] for name in task.info.blocks["head"]}
        expected = task.evaluate_stack(ids, whole, "val")
        for name in ("acc", "loss"):
            assert largest_difference(found[name][:, k], expected[name]) < 1e-12


@pytest.mark.parametrize("name", ["fedrep", "ditto", "fedala", "scaffold", "pfedme", "page"])
def test_methods_run_on_a_recurrent_model_in_a_stack(name):
    task = small_task("lstm")
    loop, stacked = (
        simulate(find_method(name)(), task, 2, executor) for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state_dict()["params"], stacked.state_dict()["params"]) < 1e-9


def test_many_rows_are_scored_in_parts_alike(monkeypatch):
    task = small_task("cnn")
    stack = {name: value[None] for name, value in task.init_params(0).items()}
    whole = task.evaluate_server(stack, "test")
    monkeypatch.setattr("equipoise.tasks.supervised.MAX_INPUTS_AT_ONCE", 2 * 12 * 12 * 3)
    parts = task.evaluate_server(stack, "test")
    assert largest_difference(whole, parts) < 1e-12


@pytest.mark.parametrize(
    ("model", "shape", "classes", "parameters", "head"),
    [
        ("cnn", (1, 28, 28), 10, 16 * 26 + 32 * (16 * 25 + 1) + 128 * (32 * 49 + 1) + 10 * 129, 2),
        (
            "cnn",
            (3, 32, 32),
            100,
            16 * 76 + 32 * (16 * 25 + 1) + 128 * (32 * 64 + 1) + 100 * 129,
            2,
        ),
        (
            "resnet18",
            (3, 32, 32),
            100,
            11_176_512 + 100 * 513,
            2,
        ),  # torchvision's ResNet-18 without its classifier
        (
            "lstm",
            (80,),
            80,
            80 * 8 + 4 * 100 * (8 + 100 + 2) + 4 * 100 * (100 + 100 + 2) + 80 * 101,
            2,
        ),
    ],
)
def test_models_have_the_papers_sizes_and_declared_blocks(model, shape, classes, parameters, head):
    module = MODELS[model](shape, classes)
    assert sum(p.numel() for p in module.parameters()) == parameters
    blocks = blocks_of(module)
    assert blocks["head"] == ("head.weight", "head.bias")
    assert len(blocks["head"]) == head


def test_models_refuse_what_they_cannot_take():
    for model, shape in (("cnn", (30,)), ("resnet18", (3, 4, 4)), ("lstm", (3, 32, 32))):
        with pytest.raises(UsageError, match=model):
            MODELS[model](shape, 10)


def test_pixels_are_normalised_by_batch_and_stay_bytes_in_memory():
    data = small_federation("images")
    split = data.split(np.array([0]), "train")
    assert split.x.dtype == torch.uint8
    x = data.transform.prepare(split.x[:2], torch.float64)
    assert x.shape == (2, 3, 12, 12)
    assert x[1, 2, 4, 5] == pytest.approx((int(split.x[1, 4, 5, 2]) / 255 - 0.3) / 0.4)
    assert data.shape == (3, 12, 12)


# --- the tasks themselves -------------------------------------------------------------------------


def _settings(task, folder, **options):
    return ExperimentConfig.from_options(
        {"task": task, "data": str(folder), "clients": 3, "rounds": 2, **options}
    )


def test_fmnist_rows_are_shared_out_as_in_the_paper(tmp_path):
    made = files.write_fmnist(tmp_path, train=300, test=50)
    task = build_task(_settings("fmnist", tmp_path, public_share=0.2))
    data, ids = task.data, np.arange(3)
    sizes = {name: data.split(ids, name).size for name in ("train", "val", "test")}
    assert sum(s.sum() for s in sizes.values()) == 300
    assert sizes["test"].sum() == pytest.approx(90, abs=2)
    assert [len(data.server(name)[1]) for name in ("public", "test")] == [10, 40]
    held = np.concatenate([data.split(ids, name).x.flatten(1).numpy() for name in sizes])
    assert sorted(map(bytes, held)) == sorted(map(bytes, made["train"][0].reshape(300, -1)))
    served = np.concatenate(
        [data.server(name)[0].flatten(1).numpy() for name in ("public", "test")]
    )
    assert sorted(map(bytes, served)) == sorted(map(bytes, made["t10k"][0].reshape(50, -1)))
    assert (task.label_counts(torch.arange(3)).sum(1).numpy() == sizes["train"]).all()


@pytest.mark.parametrize(
    "options",
    [
        {"partition": "iid", "model": "linear"},
        {
            "partition": "classes",
            "classes_per_client": 5,
            "model": "mlp",
            "train_rows": 150,
            "server_rows": 20,
        },
        {"delta": 0.1, "size_sigma": 0.3, "executor": "loop"},
    ],
)
def test_fmnist_learns_through_every_partition(tmp_path, options):
    from equipoise.experiment.runner import run

    files.write_fmnist(tmp_path / "data", train=300, test=50)
    summary = run(_settings("fmnist", tmp_path / "data", lr=0.02, **options), tmp_path / "out")
    assert summary.global_.loss < 2.35
    assert json.loads((tmp_path / "out" / "config.json").read_text())["partition"] == options.get(
        "partition", "dirichlet"
    )


def test_cifar_and_tiny_imagenet_build(tmp_path):
    files.cifar_archive(tmp_path / "cifar-10-python.tar.gz", 10)
    files.cifar_archive(tmp_path / "cifar-100-python.tar.gz", 100)
    files.write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    assert build_task(_settings("cifar10", tmp_path)).data.shape == (3, 32, 32)
    assert build_task(_settings("cifar100", tmp_path, clients=1, model="cnn")).data.classes == 100
    tiny = build_task(_settings("tinyimagenet", tmp_path, clients=2, min_rows=4))
    assert (tiny.data.shape, tiny.data.classes) == (
        (3, 64, 64),
        2,
    )  # a subset has as many classes as its wnids.txt


def test_bad_options_are_one_sentence(tmp_path):
    files.write_fmnist(tmp_path)
    for options, words in (
        ({"partition": "dirichlett"}, "did you mean 'dirichlet'"),
        ({"clients": 50}, "too few for 50 clients"),
        ({"test_share": 1.0}, "test_share"),
        ({"val_share": -0.1}, "val_share"),
        ({"min_rows": 2}, "min_rows"),
        ({"train_rows": -1}, "train_rows"),
        ({"delta": 0.0}, "delta"),
        ({"partition": "classes", "size_sigma": 0.5}, "no effect on partition 'classes'"),
        ({"scenario": "M3", "size_sigma": 0.5}, "no effect on scenario M3"),
    ):
        with pytest.raises(UsageError, match=words):
            build_task(_settings("fmnist", tmp_path, **options))


def _long_plays():
    line = (
        "  {}. " + "the quality of mercy is not strained it droppeth as the gentle rain " * 3 + "\n"
    )
    roles = "".join(line.format(role) * 4 for role in ("PORTIA", "SHYLOCK", "ANTONIO"))
    sonnets = "x\n\nTHE SONNETS\n\nby William Shakespeare\n\n\n"
    return f"{sonnets}A PLAY\n\nby William Shakespeare\n\n{roles}\nTHE END\n"


def test_shakespeare_clients_are_roles_and_tests_are_later_speech(tmp_path):
    (tmp_path / "100.txt").write_text(_long_plays())
    settings = _settings(
        "shakespeare", tmp_path, role_samples=400, spare_samples=100, server_rows=60, epochs=1
    )
    data = build_task(settings).data
    train, val, test = (data.split(np.arange(3), name) for name in ("train", "val", "test"))
    assert (train.size + val.size + test.size == 400).all()
    for k in range(3):
        last, first = val.x[val.start[k] + val.size[k] - 1], test.x[test.start[k]]
        assert torch.equal(last[1:], first[:-1])  # the text goes on where validation ends
        assert first[-1] == val.y[val.start[k] + val.size[k] - 1]
    assert [len(data.server(name)[1]) for name in ("public", "test")] == [6, 54]


def test_too_few_roles_are_refused(tmp_path):
    (tmp_path / "100.txt").write_text(_long_plays())
    with pytest.raises(UsageError, match="only 3 roles have more than"):
        build_task(
            _settings("shakespeare", tmp_path, role_samples=400, spare_samples=100, clients=4)
        )


@pytest.mark.slow
def test_the_real_shakespeare_as_in_the_paper():
    task = build_task(
        ExperimentConfig.from_options(
            {"task": "shakespeare", "data": str(files.shared("shakespeare"))}
        )
    )
    data = task.data
    assert (data.split(np.arange(100), "test").size == 2100).all()
    assert task.info.num_clients == 100
