"""A small dose of `make torture`."""

from trust.torture import torture


def test_runs_that_are_killed_at_random_moments_end_as_if_they_had_not_been(tmp_path):
    found = torture(kills=6, minutes=0.5, seed=1, folder=tmp_path)
    assert found.kills > 0
    assert found.runs > 0
    assert not found.differences
