"""Scores on the same rows: by hand, and what an interval must do."""

from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.data.federated_dataset import Target
from equipoise.experiment.row_outputs import (
    RowOutputs,
    concatenate,
    mean_losses,
    only_class,
    resample,
    site_scores,
    wilson_interval,
)
from equipoise.training.objectives import objective_of
from equipoise.utils import serialization

TWO = Target(name="ill", classes=("no", "yes"))


def says(*classes: int) -> torch.Tensor:
    """Outputs of a model that is sure of these classes."""
    return torch.nn.functional.one_hot(torch.tensor(classes), 2).float()


def rows(site: list[int], y: list[int], first: int = 0, **outputs: torch.Tensor) -> RowOutputs:
    row = np.arange(first, first + len(y))
    return RowOutputs(("a", "b"), np.array(site), row, torch.tensor(y), outputs)


def test_means_by_hand() -> None:
    """Site a: 1 of 2 right; site b: 3 of 4 right."""
    found = rows([0, 0, 1, 1, 1, 1], [0, 1, 0, 0, 1, 1], m=says(0, 0, 0, 0, 1, 0))
    scores = resample([found], TWO, "acc")
    everywhere = scores.known_sites(["m"])
    assert scores.num_rows.tolist() == [2, 4]
    assert scores.at_site("m", 0).value == 0.5
    assert scores.mean("m", everywhere, weighted=False).value == pytest.approx((0.5 + 0.75) / 2)
    assert scores.mean("m", everywhere, weighted=True).value == pytest.approx(4 / 6)


def test_the_difference_of_equal_models_is_exactly_zero() -> None:
    """Paired: both are scored on the same samples, so nothing is left of their spread."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(60, 2, generator=generator)
    y = torch.randint(0, 2, (60,), generator=generator).tolist()
    found = rows([0] * 30 + [1] * 30, y, m=outputs, same=outputs.clone())
    scores = resample([found], TWO, "auc")
    everywhere = scores.known_sites(["m", "same"])
    difference = scores.difference("m", "same", everywhere, weighted=True)
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)
    assert difference.contains_zero
    one = scores.mean("m", everywhere, weighted=True)
    assert one.low < one.value < one.high


def test_the_standard_error_of_a_difference_is_that_of_its_rows() -> None:
    """One model is right in 9 of 36 rows where the other is wrong, and never the reverse.

    The differences of the rows have mean 1/4 and variance 1/4 - 1/16.
    """
    y = [0] * 36
    first = says(*[0] * 36)
    other = says(*[0, 0, 0, 1] * 9)
    scores = resample([rows([0] * 36, y, m=first, n=other)], TWO, "acc")
    sites = scores.known_sites(["m", "n"])
    assert scores.difference("m", "n", sites, weighted=True).value == 0.25
    expected = (1 / 4 - 1 / 16) ** 0.5 / 6
    assert scores.standard_error("m", "n", sites) == pytest.approx(expected, rel=0.1)
    assert scores.standard_error("m", "m", sites) == 0


def test_losses_are_means_over_repeats_of_the_same_row() -> None:
    """A model that is sure of the right class has the loss log(1 + 1/e), else log(1 + e)."""
    right = np.log1p(np.exp(-1))
    wrong = np.log1p(np.exp(1))
    absent = torch.full((2, 2), torch.nan)
    first = rows([0, 1], [0, 0], m=says(0, 1), n=says(0, 0), none=absent)  # rows a0 and b1
    second = rows([0, 0], [0, 0], first=0, m=says(1, 0), n=says(0, 0), none=absent)  # a0, a1
    found = mean_losses([first, second], TWO, ["n", "m", "none", "other"])
    assert list(found) == ["n", "m"]
    np.testing.assert_allclose(found["n"], [right, right, right], rtol=1e-6)
    np.testing.assert_allclose(found["m"], [(right + wrong) / 2, right, wrong], rtol=1e-6)
    assert mean_losses([], TWO, ["m"]) == {}


def test_losses_are_of_rows_where_all_models_have_one() -> None:
    """Site b has no model m."""
    m = torch.cat([says(0), torch.full((1, 2), torch.nan)])
    found = mean_losses([rows([0, 1], [0, 0], m=m, n=says(0, 1))], TWO, ["m", "n"])
    assert [len(losses) for losses in found.values()] == [1, 1]


def test_bootstrap_interval_of_a_mean_is_that_of_the_binomial() -> None:
    """400 rows, 300 right: the standard error of the mean is sqrt(.75 * .25 / 400)."""
    right = [0] * 300 + [1] * 100
    found = rows([0] * 400, [0] * 400, m=says(*right))
    one = resample([found], TWO, "acc").mean("m", np.array([True, False]), weighted=True)
    assert one.value == 0.75
    assert one.high - one.low == pytest.approx(2 * 1.96 * (0.75 * 0.25 / 400) ** 0.5, rel=0.15)


def test_seeds_that_test_the_same_rows_do_not_make_the_interval_narrower() -> None:
    """Four seeds with the same test rows and the same models know no more than one."""
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(80, 2, generator=generator)
    y = torch.randint(0, 2, (80,), generator=generator).tolist()
    found = rows([0] * 40 + [1] * 40, y, m=outputs)
    both = np.array([True, True])
    once = resample([found], TWO, "acc").mean("m", both, weighted=True)
    often = resample([found] * 4, TWO, "acc").mean("m", both, weighted=True)
    assert often == once


def test_repeats_on_other_rows_do() -> None:
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(400, 2, generator=generator)
    y = torch.randint(0, 2, (400,), generator=generator)
    parts = [
        rows([0] * 100, y[k : k + 100].tolist(), k, m=outputs[k : k + 100])
        for k in range(0, 400, 100)
    ]
    first = np.array([True, False])
    once = resample(parts[:1], TWO, "acc").mean("m", first, weighted=True)
    often = resample(parts, TWO, "acc").mean("m", first, weighted=True)
    assert often.high - often.low < 0.7 * (once.high - once.low)
    joined = resample([concatenate(parts)], TWO, "acc").mean("m", first, weighted=True)
    assert joined.value == pytest.approx(often.value)


def test_a_site_without_a_score_or_a_model_is_not_counted() -> None:
    """Site b has one class, so it has no AUC; and model `only_b` is not at site a."""
    missing = torch.full((2, 2), torch.nan)
    found = rows(
        [0, 0, 1, 1],
        [0, 1, 1, 1],
        m=says(0, 1, 1, 0),
        only_b=torch.cat([missing, says(1, 1)]),
    )
    scores = resample([found], TWO, "auc")
    assert scores.known_sites(["m"]).tolist() == [True, False]
    assert scores.mean("m", scores.known_sites(["m"]), weighted=True).value == 1
    assert scores.known_sites(["only_b"]).tolist() == [False, False]
    assert np.isnan(scores.mean("m", np.array([False, False]), weighted=True).value)
    shares = resample([found], TWO, "acc")
    assert shares.known_sites(["only_b"]).tolist() == [False, True]


def test_wilson_interval() -> None:
    """Of 10 rows with 10 right, 1 / (1 + z^2 / n) is the lower end; published: 0.722."""
    found = wilson_interval(1.0, 10)
    assert found.low == pytest.approx(1 / (1 + 1.959964**2 / 10), rel=1e-6)
    assert found.high == 1.0
    assert wilson_interval(0.0, 10).high == pytest.approx(1 - found.low)


def test_one_class_for_everybody_is_found() -> None:
    found = rows([0, 0, 1], [0, 1, 0], dull=says(1, 1, 1), fine=says(0, 1, 0))
    assert only_class(found, TWO, "dull") == "yes"
    assert only_class(found, TWO, "fine") == ""
    assert only_class(rows([0, 1], [1, 1], dull=says(1, 1)), TWO, "dull") == ""


def test_written_and_read_again(tmp_path: Path) -> None:
    found = rows([0, 1], [0, 1], m=says(0, 1))
    found.fill(tmp_path / "outputs.safetensors")
    tensors, _ = serialization.read_tensors(tmp_path / "outputs.safetensors")
    again = RowOutputs.from_tensors(tensors, ("a", "b"))
    assert again.has_rows_of(found)
    assert torch.equal(again.outputs["m"], found.outputs["m"])
    assert not again.has_rows_of(rows([0, 1], [1, 1], m=says(0, 1)))


def test_log_risks_of_folds_are_ranked_after_centring() -> None:
    """Two folds order their rows rightly; the second model adds 5 to every risk."""
    target = Target(kind="survival", name="time")
    rows = np.arange(2)
    none = np.zeros(2, np.int64)
    risk = torch.tensor([[1.0], [-1.0]])
    early = torch.tensor([[1.0, 1.0], [3.0, 1.0]])
    parts = [
        RowOutputs(("a",), none, rows, early, {"m": risk}),
        RowOutputs(("a",), none, rows + 2, early + 0.5, {"m": risk + 5}),
    ]
    whole = site_scores(concatenate(parts), objective_of(target), "m", "concordance")
    # Events at 1, 1.5, 3, 3.5 with risks 1, 6, -1, 4: pairs (1, 1.5), (1, 3.5), (3, 3.5) are wrong.
    assert whole.tolist() == [0.5]
    centred = concatenate([part.centred_by_site() for part in parts])
    assert centred.outputs["m"].flatten().tolist() == [1, -1, 1, -1]
    # The two pairs of equal risks count one half.
    found = site_scores(centred, objective_of(target), "m", "concordance")
    assert found.tolist() == [pytest.approx(5 / 6)]
