"""Random numbers by counter: uniform, independent of order and company, the same for ever."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from equipoise.utils import rng


def test_known_words_never_change():
    """A run must repeat to the bit after an update: these are splitmix64's words from its published
    reference seed.
    """
    words = rng.bits(np.array([1234567], np.uint64), 5)[0]
    assert words.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_uniform_numbers_are_uniform():
    numbers = rng.uniform(rng.keys(0, np.arange(200), 3, 1), 1000)
    assert abs(numbers.mean() - 0.5) < 3 * np.sqrt(1 / 12 / numbers.size)
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert (
        (counts - 10_000) ** 2 / 10_000
    ).sum() < 43.8  # chi-squared, 19 degrees, one in a thousand
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.01


@given(st.integers(0, 2**40), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 50))
def test_every_coordinate_matters(seed, client, round, stream):
    def key(*where):
        return int(rng.keys(where[0], np.array([where[1]]), where[2], where[3])[0])

    here = key(seed, client, round, stream)
    others = [
        key(seed + 1, client, round, stream),
        key(seed, client + 1, round, stream),
        key(seed, client, round + 1, stream),
        key(seed, client, round, stream + 1),
    ]
    assert here not in others


@given(st.integers(1, 60), st.integers(1, 60))
def test_permutations_are_permutations(a, b):
    orders = rng.permutations(rng.keys(1, np.arange(2), 0, 0), np.array([a, b]), 2)
    for k, n in enumerate((a, b)):
        for order in orders[k]:
            assert sorted(order[:n]) == list(range(n))


def test_cohorts_have_the_asked_size_and_cover_everybody():
    seen: set[int] = set()
    for t in range(1, 200):
        ids = rng.sample_cohort(7, t, 50, 0.1)
        assert len(set(ids.tolist())) == 5
        assert (np.diff(ids) > 0).all()
        seen |= set(ids.tolist())
    assert seen == set(range(50))
    assert rng.sample_cohort(7, 3, 50, 1.0).tolist() == list(range(50))
    assert len(rng.sample_cohort(7, 3, 50, 0.001)) == 1


def test_a_cohort_of_a_huge_population_is_cheap():
    assert len(rng.sample_cohort(0, 1, 10**12, 1e-10)) == 100
