"""Verdicts by hand: ties, winners, sites that differ, seeds that differ, and figures in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.data.federated_dataset import Target
from equipoise.experiment.decision import (
    Entry,
    Evidence,
    decide,
    in_order_of_preference,
    seeds_differ,
)
from equipoise.experiment.evaluation import mean_scores
from equipoise.experiment.row_outputs import RowOutputs
from equipoise.records.decision import Estimate
from equipoise.utils.metrics import format_difference, format_score, score_digits

TWO = Target(name="ill", classes=("no", "yes"))
SITES = ("a", "b")
ENTRIES = [
    Entry("m|personal", "m", "personal"),
    Entry("m|global", "m", "global"),
    Entry("local", "", "local"),
    Entry("constant", "", "constant"),
]


def outputs(shares: dict[str, tuple[float, float]], rows: int = 100, seed: int = 0) -> RowOutputs:
    """Return models that are right in the given shares of each site's rows, at random places."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, 2 * rows)
    site = np.repeat([0, 1], rows)
    found = {}
    for name, both in shares.items():
        is_right = np.concatenate([random.permutation(rows) < share * rows for share in both])
        said = torch.from_numpy(np.where(is_right, y, 1 - y))
        found[name] = torch.nn.functional.one_hot(said, 2).float()
    return RowOutputs(SITES, site, np.arange(2 * rows), torch.from_numpy(y), found)


def evidence(test: dict[str, tuple[float, float]], val: dict[str, tuple[float, float]]) -> Evidence:
    return Evidence(TWO, "acc", [outputs(test)], [outputs(val, 20, 1)], ENTRIES, {"a": 10, "b": 20})


def test_a_clear_winner_is_named() -> None:
    shares = {
        "m|personal": (0.95, 0.9),
        "m|global": (0.7, 0.7),
        "local": (0.6, 0.6),
        "constant": (0.5, 0.5),
    }
    found = decide(evidence(shares, shares))
    assert (found.method, found.model) == ("m", "personal")
    assert found.headline.startswith("Use m, personal models (acc 92.5 % [")
    assert "better than each site's own model by 32.5 points [" in found.headline
    assert found.candidates[0].weighted.value == pytest.approx(0.925)
    assert {one.label: one.verdict for one in found.candidates}["a constant"] == "behind"
    assert [site.verdict for site in found.sites] == ["better", "better"]
    assert [site.train_rows for site in found.sites] == [10, 20]


def test_a_tie_is_called_a_tie() -> None:
    shares = {
        "m|personal": (0.75, 0.75),
        "m|global": (0.5, 0.5),
        "local": (0.74, 0.74),
        "constant": (0.5, 0.5),
    }
    found = decide(evidence(shares, {**shares, "m|personal": (0.9, 0.9)}))
    assert "or keep each site's own model: they tie" in found.headline
    assert "better than each site's own model by" not in found.headline
    assert [site.verdict for site in found.sites] == ["tie", "tie"]


def test_the_choice_is_made_on_validation_rows_unless_the_test_is_clear() -> None:
    close = {
        "m|personal": (0.75, 0.75),
        "m|global": (0.76, 0.76),
        "local": (0.6, 0.6),
        "constant": (0.5, 0.5),
    }
    by_validation = decide(evidence(close, {**close, "m|personal": (1.0, 1.0)}))
    assert by_validation.model == "personal"
    clear = {**close, "m|global": (0.95, 0.95)}
    by_test = decide(evidence(clear, {**close, "m|personal": (1.0, 1.0)}))
    assert by_test.model == "global"
    assert "slightly optimistic" in by_test.notes[0]


def test_a_tie_on_validation_rows_goes_to_the_method_named_first() -> None:
    """`n` is better on validation rows by chance, then clearly; test rows never differ."""
    names = ("m|personal", "m|global", "n|global", "local", "constant")
    test = dict.fromkeys(names, (0.8, 0.8))
    entries = [*ENTRIES[:2], Entry("n|global", "n", "global"), *ENTRIES[2:]]
    by_chance = {**dict.fromkeys(names, (0.8, 0.8)), "n|global": (0.85, 0.85)}
    by_chance["m|global"] = (0.75, 0.75)
    found = decide(replace(evidence(test, by_chance), entries=entries))
    assert (found.method, found.model) == ("m", "personal")
    clearly = {**dict.fromkeys(names, (0.5, 0.5)), "n|global": (1.0, 1.0)}
    found = decide(replace(evidence(test, clearly), entries=entries))
    assert (found.method, found.model) == ("n", "global")
    in_other_order = [entries[2], *entries[:2], *entries[3:]]
    found = decide(replace(evidence(test, by_chance), entries=in_other_order))
    assert (found.method, found.model) == ("n", "global")


def test_the_simplest_model_within_one_standard_error_is_chosen() -> None:
    """The global model has rows 0 to 7 of 40 wrong, that is 20 %; a wrong row costs a loss of 1.

    Personal models that have rows 5 to 11 wrong are better by 1/40; the models differ in 9 rows, so
    that the standard error is about sqrt(9/40) / sqrt(40) = 0.075. Personal models that have no
    row wrong are better by 0.2, with an error of sqrt(0.2 - 0.04) / sqrt(40) = 0.063.
    """
    test = outputs(dict.fromkeys([entry.key for entry in ENTRIES], (0.8, 0.8)))

    def chosen(personal: range) -> str:
        wrong = {"m|personal": personal, "m|global": range(8), "local": range(20)}
        wrong["constant"] = range(20)
        said = {name: torch.zeros(40, dtype=torch.int64) for name in wrong}
        for name, rows in wrong.items():
            said[name][list(rows)] = 1
        found = {name: torch.nn.functional.one_hot(one, 2).float() for name, one in said.items()}
        y = torch.zeros(40, dtype=torch.int64)
        val = RowOutputs(SITES, np.arange(40) % 2, np.arange(40), y, found)
        return decide(Evidence(TWO, "acc", [test], [val], ENTRIES, {})).model

    assert chosen(range(12)) == "global"
    assert chosen(range(5, 12)) == "global"
    assert chosen(range(0)) == "personal"


def test_a_better_loss_without_a_better_score_is_no_reason() -> None:
    """Personal models know the level of each site: the loss is lower, the order within is not.

    At site a 30 of 40 rows are ill, at b 10 of 40. The global model gives the same logit to all
    healthy rows, and a higher one to all ill rows but five of each site.
    """
    y = torch.tensor([1] * 30 + [0] * 10 + [1] * 10 + [0] * 30)
    high = torch.tensor([1.0] * 25 + [0.0] * 15 + [1.0] * 5 + [0.0] * 35)
    level = torch.tensor([1.0] * 40 + [-1.0] * 40)
    logits = {"m|global": high, "m|personal": high + level, "local": high, "constant": 0 * high}
    found = {name: torch.stack([-one / 2, one / 2], dim=1) for name, one in logits.items()}
    rows = RowOutputs(SITES, np.repeat([0, 1], 40), np.arange(80), y, found)

    def chosen(metric: str) -> str:
        return decide(Evidence(TWO, metric, [rows], [rows], ENTRIES, {})).model

    assert chosen("auc") == "global"
    assert chosen("loss") == "personal"


def test_methods_come_in_their_order_and_own_models_last() -> None:
    entries = [Entry("local", "", "local"), Entry("n|global", "n", "global"), *ENTRIES[:2]]
    found = in_order_of_preference([*entries, ENTRIES[3]])
    assert [entry.key for entry in found] == ["n|global", "m|global", "m|personal", "local"]


def test_own_models_that_win_are_kept_and_constants_are_named() -> None:
    shares = {
        "m|personal": (0.5, 0.5),
        "m|global": (0.5, 0.5),
        "local": (0.9, 0.9),
        "constant": (0.5, 0.5),
    }
    found = decide(evidence(shares, shares))
    assert (found.method, found.model) == ("", "local")
    assert found.headline.startswith("Each site should keep its own model (acc 90.0 %")
    assert "is behind by 40.0 points" in found.headline
    assert [site.verdict for site in found.sites] == ["worse", "worse"]
    poor = {**shares, "local": (0.5, 0.5), "m|personal": (0.52, 0.52)}
    notes = decide(evidence(poor, poor)).notes
    assert any(note.startswith("It is no better than a constant prediction.") for note in notes)


def test_a_site_may_use_another_model_if_it_is_clearly_better_there() -> None:
    shares = {
        "m|personal": (0.6, 0.95),
        "m|global": (0.95, 0.5),
        "local": (0.5, 0.5),
        "constant": (0.5, 0.5),
    }
    once = evidence(shares, {**shares, "m|personal": (0.95, 0.95)})
    assert [site.model for site in decide(once).sites] == ["personal", "personal"]
    found = decide(replace(once, test=[*once.test, outputs(shares, seed=3)]))
    assert found.model == "personal"
    assert [site.model for site in found.sites] == ["global", "personal"]
    assert "Another model is clearly better at a (global model)." in found.notes


def test_gains_in_errors_are_positive_where_a_site_gains() -> None:
    """Errors of 1 and 3 everywhere: the gain is 2, of 3 it is better by 2."""
    y = torch.zeros(40)
    rows = RowOutputs(
        SITES,
        np.repeat([0, 1], 20),
        np.arange(40),
        y,
        {"m|personal": torch.full((40, 1), 1.0), "local": torch.full((40, 1), 3.0)},
    )
    found = decide(
        Evidence(Target("regression", "y"), "rmse", [rows], [], [ENTRIES[0], ENTRIES[2]], {})
    )
    assert [site.gain.value for site in found.sites] == [2.0, 2.0]
    assert [site.verdict for site in found.sites] == ["better", "better"]
    assert "better than each site's own model by 2.00 [2.00, 2.00]" in found.headline


def test_one_class_for_everybody_is_called_so() -> None:
    shares = dict.fromkeys(("m|personal", "m|global", "local", "constant"), (0.8, 0.8))
    given = evidence(shares, shares)
    dull = torch.tensor([[0.0, 1.0]]).expand(200, 2)
    rows = given.test[0]
    changed = RowOutputs(
        rows.sites, rows.site, rows.row, rows.y, {**rows.outputs, "m|global": dull}
    )
    found = decide(Evidence(TWO, "acc", [changed], given.val, ENTRIES, {}))
    assert "m, global model: predicts 'yes' for every row, as a constant would." in found.notes


def test_undefined_and_tiny_sites_are_counted_in_words() -> None:
    rows = outputs(dict.fromkeys(("m|personal", "local", "constant"), (0.8, 0.8)), rows=8)
    y = torch.where(torch.from_numpy(rows.site) == 1, torch.ones_like(rows.y), rows.y)
    changed = RowOutputs(rows.sites, rows.site, rows.row, y, rows.outputs)
    entries = [ENTRIES[0], *ENTRIES[2:]]
    found = decide(Evidence(TWO, "auc", [changed], [], entries, {}))
    text = " ".join(found.notes)
    assert "auc has no value at 1 of 2 sites (all test rows are of one class): b." in text
    assert "2 of 2 sites have fewer than 10 test rows" in text
    nowhere = RowOutputs(rows.sites, rows.site, rows.row, torch.ones_like(y), rows.outputs)
    empty = decide(Evidence(TWO, "auc", [nowhere], [], entries, {}))
    assert empty.headline.startswith("Nothing can be said: auc has no value at any site")


def test_seeds_that_differ_much() -> None:
    assert seeds_differ("auc", [0.70, 0.84])
    assert not seeds_differ("auc", [0.80, 0.82])
    assert seeds_differ("rmse", [20_000, 23_000])
    assert not seeds_differ("rmse", [20_000, 20_500])


def test_figures_as_people_write_them() -> None:
    assert format_score("rmse", 35245.8967) == "35,246"
    assert format_score("acc", 0.94567) == "94.6 %"
    assert format_score("auc", 0.82468) == "0.825"
    assert format_score("mae", 3.14159) == "3.14"
    assert format_score("auc", float("nan")) == "—"
    assert format_difference("acc", -0.0123) == "-1.2 points"
    assert format_difference("rmse", 4357.2) == "+4,357"
    assert score_digits("rmse", 23251.6) == 0


def test_deciles_are_the_worst_side_of_the_metric() -> None:
    values = torch.arange(11, dtype=torch.float64)
    rows = torch.ones(11)
    assert mean_scores(values, rows, higher_is_better=True).worst_decile == pytest.approx(1)
    assert mean_scores(values, rows, higher_is_better=False).worst_decile == pytest.approx(9)
    weighted = mean_scores(torch.tensor([1.0, 3.0]), torch.tensor([3, 1]), higher_is_better=True)
    assert (weighted.mean, weighted.weighted) == (2.0, 1.5)


def test_differences_have_the_decimals_of_their_scores_and_no_negative_zero() -> None:
    assert format_difference("acc", -0.0001) == "+0.0 points"
    assert format_difference("auc", -0.0001) == "+0.000"
    money = Estimate(0.59, 0.154, 0.903)
    assert money.difference_text("rmse", 4039.0) == "+1 [+0, +1]"
    assert money.difference_text("rmse", 5.9) == "+0.59 [+0.15, +0.90]"
    assert Estimate(-0.02, -0.05, 0.01).difference_text("auc", 0.8) == "-0.020 [-0.050, +0.010]"


def test_a_sure_difference_that_nobody_would_notice_is_a_tie() -> None:
    assert Estimate(0.59, 0.154, 0.903).is_tie("rmse", 4039.0)
    assert not Estimate(0.59, 0.154, 0.903).is_tie("rmse", 5.9)
    assert Estimate(0.0009, 0.0005, 0.0013).is_tie("auc", 0.8)
    assert not Estimate(0.0011, 0.0005, 0.0013).is_tie("auc", 0.8)
    y = torch.linspace(1, 2, 200, dtype=torch.float64)
    errors = {"m|personal": 0.09999, "m|global": 0.1, "local": 0.3}
    models = {name: (y + error)[:, None] for name, error in errors.items()}
    site = np.repeat([0, 1], 100)
    rows = RowOutputs(SITES, site, np.arange(200), y, models)
    target = Target("regression", "y")
    found = decide(Evidence(target, "rmse", [rows, rows], [], ENTRIES[:3], {}))
    assert found.model == "global"
    assert {one.label: one.verdict for one in found.candidates}["m, personal models"] == "tie"
    assert [one.model for one in found.sites] == ["global", "global"]
    assert found.notes[-1].endswith("over rows; a lower rmse is better.")


def test_one_class_is_no_fault_of_a_score_of_order() -> None:
    shares = dict.fromkeys(("m|personal", "m|global", "local", "constant"), (0.8, 0.8))
    given = evidence(shares, shares)
    rows = given.test[0]
    ordered = torch.stack([torch.full((200,), 2.0), rows.y.float()], 1)
    changed = replace(rows, outputs={**rows.outputs, "m|global": ordered})
    found = decide(replace(given, metric="auc", test=[changed]))
    said = next(note for note in found.notes if note.startswith("m, global model: predicts"))
    assert said.endswith("predicts 'no' for every row; auc scores the order of its probabilities.")
