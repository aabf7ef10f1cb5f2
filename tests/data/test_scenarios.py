"""Mixed populations: every row goes to one client, who sees it the same way in every split."""

import numpy as np
import pytest
import torch

from data import files
from equipoise.data import scenarios
from equipoise.data.splits import SplitConfig
from equipoise.data.transforms import PixelTransform
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import run
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError

CLIENTS = 9
SPLITS = ("train", "val", "test")


def population(name):
    """Images that carry their row's number in the first pixel and its label in every other one."""
    rng = np.random.default_rng(5)
    y = rng.integers(0, 10, 900)
    x = np.repeat(y.astype(np.uint8)[:, None], 16, 1) * 10 + np.arange(16, dtype=np.uint8)
    data = (x.reshape(900, 4, 4, 1), y)
    config = SplitConfig(clients=CLIENTS, val_share=0.2)
    form = PixelTransform((0.5,), (0.5,))
    return data, scenarios.make_scenario(
        name, data, data, config, 10, form, np.random.default_rng(0)
    )


def held(federation, client, split):
    own = federation.split(np.array([client]), split)
    here = slice(int(own.start[0]), int(own.start[0] + own.size[0]))
    return own.x[here].numpy(), own.y[here].numpy()


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_every_scenario_builds_alike_twice_and_shares_rows_out(name):
    _, one = population(name)
    _, two = population(name)
    total = 0
    for split in SPLITS:
        for client in range(CLIENTS):
            x, y = held(one, client, split)
            assert np.array_equal(x, held(two, client, split)[0])
            total += len(y)
    few = any(group.few_rows for group in scenarios.SCENARIOS[name])
    assert total < 900 if few else total == 900


def test_few_rows_are_few_for_training_and_many_for_the_test():
    _, data = population("M1")
    train, test = (data.split(np.arange(CLIENTS), split).size for split in ("train", "test"))
    assert train[5:].max() < 0.3 * train[:5].mean()
    assert test[5:].min() > 25


def test_labels_are_permuted_by_one_permutation_in_all_splits():
    _, data = population("M3")
    for client, moved in ((0, False), (3, True), (6, False)):
        seen = {}
        for split in SPLITS:
            x, y = held(data, client, split)
            true = x.reshape(len(x), -1).min(1) // 10
            for a, b in zip(true.tolist(), y.tolist(), strict=True):
                assert seen.setdefault(a, b) == b
        assert (seen != {a: a for a in seen}) == moved
        assert len(set(seen.values())) == len(seen)


def test_pixels_are_scrambled_by_one_permutation_in_all_splits():
    _, data = population("M3")
    for client, moved in ((0, False), (3, False), (6, True), (7, True)):
        orders = {
            tuple(row) for split in SPLITS for row in rank(held(data, client, split)[0]).tolist()
        }
        assert len(orders) == 1
        assert (orders != {tuple(range(16))}) == moved


def rank(x):
    return x.reshape(len(x), -1).astype(int).argsort(1).argsort(1)


def test_views_are_quarter_turns_and_negatives():
    x = np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1)
    y = np.zeros(1, np.int64)
    square = x[:, :, :2]
    assert np.array_equal(
        scenarios.rotate_or_invert(square, y, 1, 10, None)[0][0, :, :, 0], [[1, 5], [0, 4]]
    )
    assert np.array_equal(scenarios.rotate_or_invert(square, y, 4, 10, None)[0], 255 - square)
    assert np.array_equal(scenarios.rotate_or_invert(square, y, 8, 10, None)[0], square)


def test_a_scenario_runs_from_the_settings(tmp_path):
    files.write_fmnist(tmp_path / "data", train=300, test=50)
    given = {
        "task": "fmnist",
        "data": str(tmp_path / "data"),
        "clients": 6,
        "rounds": 2,
        "model": "mlp",
        "pool": 2,
    }
    settings = ExperimentConfig.from_options(
        {**given, "scenario": "M3", "method": "fedpolicy", "val_share": 0.2}
    )
    assert build_task(settings).data.shape == (1, 14, 14)
    assert run(settings, tmp_path / "out").clients_seen == 6
    for options, words in (
        ({"scenario": "M4"}, "did you mean"),
        ({"scenario": "M3", "clients": 2}, "needs 3 clients"),
        ({"pool": 3}, "pool is 3"),
    ):
        with pytest.raises(UsageError, match=words):
            build_task(ExperimentConfig.from_options({**given, **options}))


def test_average_pool_pixels_are_means_of_squares():
    from equipoise.tasks.images import _average_pool

    x = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1)
    assert _average_pool(x, 2)[0, :, :, 0].tolist() == [[2, 4], [10, 12]]
    assert torch.equal(torch.from_numpy(_average_pool(x, 1)), torch.from_numpy(x))
