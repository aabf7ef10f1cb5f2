"""Partitions: every row once, the asked skew, the minimum, and the seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data import partition
from equipoise.data.partition import Partition
from equipoise.data.splits import SplitConfig, client_splits
from equipoise.utils.errors import UsageError

LABELS = np.repeat(np.arange(10), 600)


def _rng(seed=0):
    return np.random.default_rng(seed)


def _counts(parts, labels=LABELS):
    classes = int(labels.max()) + 1
    return np.array(
        [np.bincount(labels[parts.rows_of(k)], minlength=classes) for k in range(len(parts.sizes))]
    )


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=60, max_size=200),
    st.integers(1, 12),
    st.floats(0.01, 50),
    st.floats(0, 1.5),
    st.integers(1, 5),
)
def test_every_row_once_and_nobody_below_the_minimum(labels, clients, delta, sigma, least):
    labels = np.array(labels)
    for parts in (
        partition.dirichlet(labels, clients, _rng(), delta, sigma, least),
        partition.iid(labels, clients, _rng(), sigma, least),
    ):
        assert sorted(parts.rows.tolist()) == list(range(len(labels)))
        assert parts.sizes.sum() == len(labels)
        assert parts.sizes.min() >= least


def test_the_seed_decides_and_nothing_else():
    one, same, other = (
        partition.dirichlet(LABELS, 20, _rng(seed), 0.3).rows.tolist() for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_dirichlet_sizes_are_alike_and_skew_follows_delta():
    largest = []
    for delta in (0.1, 0.3, 1.0, 100.0):
        parts = partition.dirichlet(LABELS, 30, _rng(), delta)
        assert np.abs(parts.sizes - 200).max() <= 3
        largest.append((_counts(parts) / parts.sizes[:, None]).max(1).mean())
    assert largest == sorted(largest, reverse=True)
    assert largest[0] > 0.5  # Dir(0.1) over ten classes has its largest share at 0.66 on average
    assert largest[-1] < 0.15  # and Dir(100) is nearly uniform


def test_log_normal_sizes_have_the_asked_spread():
    sizes = partition.iid(np.zeros(400_000, np.int64), 2000, _rng(), 0.5).sizes
    assert np.log(sizes).std() == pytest.approx(0.5, abs=0.03)


def test_few_classes_are_exactly_so_many_and_shared_evenly():
    for classes in (1, 2, 3, 7, 10):
        parts = partition.classes_per_client_partition(LABELS, 20, _rng(), classes)
        counts = _counts(parts)
        assert ((counts > 0).sum(1) == classes).all()
        holders = (counts > 0).sum(0)
        assert holders.max() - holders.min() <= 1
        for label in range(10):
            held = counts[counts[:, label] > 0, label]
            assert held.max() - held.min() <= 1
        assert len(parts.rows) == len(LABELS)


def test_natural_clients_keep_the_order_of_their_rows():
    parts = partition.natural(np.array([7, 3, 7, 7, 3, 9]), min_rows=2)
    assert parts.sizes.tolist() == [2, 3]  # client 9 has one row only
    assert parts.rows.tolist() == [1, 4, 0, 2, 3]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: partition.iid(np.zeros(9, np.int64), 5, _rng(), min_rows=2),
            "too few for 5 clients",
        ),
        (lambda: partition.iid(LABELS, 0, _rng()), "clients is 0"),
        (lambda: partition.iid(LABELS, 5, _rng(), -1.0), "size_sigma is -1.0"),
        (lambda: partition.iid(LABELS, 5, _rng(), 1e3), "size_sigma is 1000.0"),
        (lambda: partition.dirichlet(LABELS, 5, _rng(), 0.0), "delta is 0.0"),
        (lambda: partition.dirichlet(LABELS, 5, _rng(), np.inf), "delta is inf"),
        (
            lambda: partition.classes_per_client_partition(LABELS, 20, _rng(), 11),
            "must lie in 1..10",
        ),
        (
            lambda: partition.classes_per_client_partition(LABELS, 4, _rng(), 2),
            "cannot hold all 10 classes",
        ),
        (
            lambda: partition.classes_per_client_partition(
                np.repeat([0, 1], [10, 990]), 2, _rng(), 1, min_rows=100
            ),
            "fewer than 100",
        ),
        (lambda: partition.natural(np.array([1, 2]), 2), "no client has 2 rows"),
    ],
)
def test_bad_requests_are_one_sentence(call, words):
    with pytest.raises(UsageError, match=words):
        call()


def test_splits_are_seven_to_three_with_validation_out_of_training():
    splits = client_splits(np.array([100, 10, 4]), SplitConfig())
    assert {name: sizes.tolist() for name, sizes in splits.items()} == {
        "train": [63, 6, 2],
        "val": [7, 1, 1],
        "test": [30, 3, 1],
    }
    assert "val" not in client_splits(np.array([100]), SplitConfig(val_share=0.0))


def test_parts_know_their_clients():
    parts = Partition(np.array([5, 1, 2]), np.array([1, 2]))
    assert parts.rows_of(1).tolist() == [1, 2]
