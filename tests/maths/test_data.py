"""Synthetic data: the generator of the paper, its splits, and data that must be refused."""

import numpy as np
import pytest
import torch

from equipoise.data.datasets import synthetic
from equipoise.data.datasets.synthetic import Synthetic, SyntheticConfig
from equipoise.data.federated_dataset import Federation
from equipoise.utils.errors import UsageError


def test_the_defaults_are_the_papers_numbers():
    data = Synthetic(SyntheticConfig(), 0)
    ids = np.arange(100)
    sizes = {name: data.split(ids, name).size for name in ("train", "val", "test")}
    assert {name: (int(s.min()), int(s.max())) for name, s in sizes.items()} == {
        "train": (189, 189),
        "val": (21, 21),
        "test": (90, 90),
    }
    assert data.server("test")[0].shape == (7500, 30)
    assert data.server("public")[0].shape == (1500, 30)
    assert set(data.server("test")[1].tolist()) <= set(range(30))


def test_inputs_follow_the_stated_distribution():
    """x_j ~ N(m_j, j^-1.2) around a mean of the client's own, m ~ N(B, 1), B ~ N(0, beta^2)."""
    data = Synthetic(SyntheticConfig(clients=200, samples=2000), 1)
    split = data.split(np.arange(200), "train")
    rows = [split.x[s : s + n].double() for s, n in zip(split.start, split.size, strict=True)]
    variance = torch.stack([r.var(0) for r in rows]).mean(0)
    assert torch.allclose(variance, torch.arange(1, 31).double() ** -1.2, rtol=0.05)
    means = torch.stack([r.mean(0) for r in rows])
    assert float(means.var()) == pytest.approx(2.0, rel=0.25)  # beta^2 + 1
    assert float(means.var(1).mean()) == pytest.approx(1.0, rel=0.1)  # within a client


def test_one_labelling_model_for_all_unless_alpha_says_otherwise():
    """With alpha = 0 the labels of all clients follow one linear rule: regression on log-odds is
    consistent.
    """
    shared = Synthetic(SyntheticConfig(clients=5, samples=200), 0)
    x, y = shared.split(np.arange(5), "train").x.double(), shared.split(np.arange(5), "train").y
    rule = torch.from_numpy(shared._weight), torch.from_numpy(shared._bias)
    assert float(((x @ rule[0] + rule[1]).argmax(1) == y).double().mean()) > 0.999
    own = Synthetic(SyntheticConfig(clients=5, samples=200, alpha=1.0), 0)
    x, y = own.split(np.arange(5), "train").x.double(), own.split(np.arange(5), "train").y
    assert float(((x @ rule[0] + rule[1]).argmax(1) == y).double().mean()) < 0.9


def test_a_cohort_made_by_itself_equals_the_same_clients_of_the_whole(monkeypatch):
    config = SyntheticConfig(clients=30, samples=50, size_sigma=0.5)
    whole, ids = Synthetic(config, 3), np.array([4, 17, 29])
    monkeypatch.setattr(synthetic, "MAX_IN_MEMORY", 10)
    lazy = Synthetic(config, 3)
    for name in ("train", "val", "test"):
        a, b = whole.split(ids, name), lazy.split(ids, name)
        assert a.size.tolist() == b.size.tolist()
        for k in range(3):
            left, right = (s.x[s.start[k] : s.start[k] + s.size[k]] for s in (a, b))
            assert torch.equal(left, right)
    for name in ("public", "test"):
        assert torch.equal(whole.server(name)[0], lazy.server(name)[0])


def test_sizes_spread_around_their_mean():
    sizes = (
        Synthetic(SyntheticConfig(clients=2000, samples=100, size_sigma=0.5), 0)
        .split(np.arange(2000), "train")
        .size
    )
    assert 0.45 < float(np.log(sizes).std()) < 0.55
    assert float(sizes.mean()) == pytest.approx(100 * 0.8 * 0.7 * 0.9, rel=0.05)


def test_parts_of_a_split_are_disjoint_and_never_empty():
    split = Synthetic(SyntheticConfig(clients=3, samples=20), 0).split(np.arange(3), "train")
    support, query = split.fraction(0.0, 0.5), split.fraction(0.5, 1.0)
    assert (support.start + support.size == query.start).all()
    assert (support.size + query.size == split.size).all()
    assert (split.fraction(0.0, 0.001).size == 1).all()


def test_padding_averages_only_a_clients_own_rows():
    data = Synthetic(SyntheticConfig(clients=3, samples=60, size_sigma=0.8), 0)
    split = data.split(np.arange(3), "test")
    x, y, weight = split.padded
    assert x.shape[:2] == y.shape == weight.shape
    assert torch.allclose(weight.sum(1), torch.ones(3).double())
    assert (weight > 0).sum(1).tolist() == split.size.tolist()


def _federation(x=None, y=None, sizes=(2, 2)):
    x = torch.zeros(4, 3) if x is None else x
    y = torch.zeros(4, dtype=torch.int64) if y is None else y
    rows = (x, y, np.array(sizes))
    return Federation({"train": rows, "test": rows}, {"test": (x, y), "public": (x, y)}, 2)


def test_good_data_is_taken():
    assert _federation().clients == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_data_with_holes_is_refused_by_row(bad):
    x = torch.zeros(4, 3)
    x[2, 1] = bad
    with pytest.raises(UsageError, match="row 2 of split 'train' holds NaN"):
        _federation(x=x)


def test_an_empty_client_is_refused_by_number():
    with pytest.raises(UsageError, match="client 1 has no rows in split 'train'"):
        _federation(sizes=(4, 0))


def test_labels_outside_the_classes_are_refused():
    with pytest.raises(UsageError, match=r"labels outside 0\.\.1"):
        _federation(y=torch.tensor([0, 1, 2, 0]))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("clients", 0),
        ("classes", 1),
        ("samples", 3),
        ("val_share", 1.0),
        ("test_share", 0.0),
        ("beta", -1.0),
    ],
)
def test_impossible_numbers_are_refused_by_name(option, value):
    with pytest.raises(UsageError, match=option):
        SyntheticConfig(**{option: value})
