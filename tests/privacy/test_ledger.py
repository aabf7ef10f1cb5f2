"""Epsilon against the closed form of the Gaussian mechanism and against the library's own
composition.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from equipoise.cli import main
from equipoise.methods.fedavg import FedAvg
from equipoise.privacy.accountant import GaussianAccountant, gaussian_epsilon
from equipoise.privacy.budget import PrivacyBudget
from equipoise.privacy.config import PrivacyConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from equipoise.wrappers.differential_privacy import with_differential_privacy
from helpers import small_task


def delta_of(epsilon: float, mu: float) -> float:
    """Balle and Wang (2018), theorem 8: delta of a Gaussian mechanism of
    sensitivity / sigma = mu.
    """
    cdf = NormalDist().cdf
    return cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("noise", "rounds"), [(10.0, 1), (4.0, 5), (20.0, 100)])
def test_everybody_each_round_is_the_closed_form(noise: float, rounds: int) -> None:
    """Server: mu = 2 sqrt(T) / sigma.

    Models of K = 10: a reader that is a client leaves nine noises.
    """
    ledger = GaussianAccountant(PrivacyConfig(1.0, noise), 10, 10, True, amplified=True)
    for _ in range(rounds):
        told = ledger.after(np.arange(10), 10)
    assert delta_of(told.epsilon_server, 2 * math.sqrt(rounds) / noise) == pytest.approx(
        1e-5, rel=1e-4
    )
    assert delta_of(told.epsilon, 2 * math.sqrt(rounds / 9) / noise) == pytest.approx(
        1e-5, rel=1e-4
    )
    assert told.uploads == rounds


def test_cohorts_are_amplified_as_the_library_does_it() -> None:
    """100 of 1000 clients, effective multiplier 2, 100 rounds: 5.379 at delta 1e-5 by dp-accounting
    0.6.
    """
    ledger = GaussianAccountant(
        PrivacyConfig(1.0, 4 / math.sqrt(99)), 1000, 100, True, amplified=True
    )
    for t in range(100):
        told = ledger.after(np.arange(100) + 100 * (t % 10), 100)
    library = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        1000, 100, dp_accounting.GaussianDpEvent(2.0)
    )
    library.compose(event, 100)
    assert told.epsilon == pytest.approx(library.get_epsilon(1e-5), rel=1e-9)
    assert told.epsilon == pytest.approx(5.379, abs=1e-3)


def test_without_secrecy_of_the_cohort_a_client_pays_for_the_rounds_it_was_in() -> None:
    hidden, known = (
        GaussianAccountant(PrivacyConfig(1.0, 0.5), 100, 10, True, amplified=a)
        for a in (True, False)
    )
    for t in range(10):
        ids = np.arange(10) + 10 * (t % 5)
        one, other = hidden.after(ids, 10), known.after(ids, 10)
    assert other.epsilon == pytest.approx(gaussian_epsilon(2 * 4 / (0.25 * 9), 1e-5))
    assert one.epsilon <= other.epsilon
    assert other.uploads == 2


def test_fewer_replies_cost_more_and_a_round_without_a_new_model_costs_only_the_uploads() -> None:
    few, many = (
        GaussianAccountant(PrivacyConfig(1.0, 5.0), 10, 10, True, amplified=True) for _ in range(2)
    )
    assert few.after(np.arange(10), 3).epsilon > many.after(np.arange(10), 10).epsilon
    before = many.privacy_spent()
    after = many.after(np.arange(10), 0)
    assert after.epsilon == before.epsilon
    assert after.epsilon_server > before.epsilon_server


def test_one_reply_is_no_better_hidden_than_the_upload() -> None:
    told = GaussianAccountant(PrivacyConfig(1.0, 5.0), 1, 1, True, amplified=True).after(
        np.arange(1), 1
    )
    assert told.epsilon == told.epsilon_server


def test_nothing_sent_costs_nothing_and_no_noise_promises_nothing() -> None:
    assert (
        GaussianAccountant(PrivacyConfig(1.0, 1.0), 3, 3, False, amplified=True)
        .after(np.arange(3), 3)
        .epsilon
        == 0
    )
    assert (
        GaussianAccountant(PrivacyConfig(1.0), 3, 3, True, amplified=True)
        .after(np.arange(3), 3)
        .epsilon
        is None
    )


def test_a_resumed_run_goes_on_counting() -> None:
    task, privacy = small_task("linear"), PrivacyConfig(1.0, 2.0)

    def start() -> FederatedSimulation:
        ledger = GaussianAccountant(privacy, 6, 3, True, amplified=True)
        return FederatedSimulation(
            with_differential_privacy(FedAvg(), privacy),
            task,
            task.info.training,
            RoundLoopConfig(4, 0, 0.5, "stacked", 1, True),
            accountant=ledger,
        )

    whole, first, second = start(), start(), start()
    logs = [whole.run_round() for _ in range(4)]
    for _ in range(2):
        first.run_round()
    second.load_state_dict(first.state_dict(), 2)
    assert [second.run_round().privacy for _ in range(2)] == [log.privacy for log in logs[2:]]


def test_a_client_s_own_budget_holds_over_runs(tmp_path: Path) -> None:
    privacy = PrivacyConfig(1.0, 4.0)
    most = gaussian_epsilon(3 * 4 / 16, 1e-5) + 1e-6
    for _ in range(3):
        budget = PrivacyBudget(tmp_path / "privacy.json", privacy, most)
        budget.check()
        budget.spend()
    with pytest.raises(Exception, match="would take the client's epsilon to"):
        PrivacyBudget(tmp_path / "privacy.json", privacy, most).check()
    with pytest.raises(Exception, match="the run has no dp_noise"):
        PrivacyBudget(tmp_path / "other.json", PrivacyConfig(1.0), most).check()
    text = (tmp_path / "privacy.json").read_text()
    (tmp_path / "privacy.json").write_text(text.replace("0.75", "0.25"))
    with pytest.raises(Exception, match="is damaged"):
        PrivacyBudget(tmp_path / "privacy.json", privacy, most).check()


@pytest.mark.parametrize("noise", [1e-300, 9e-4])
def test_noise_that_protects_nobody_is_refused(noise):
    with pytest.raises(UsageError, match="must be 0 or at least 0"):
        PrivacyConfig(1.0, noise)


DP = ["--dp-clip", "1", "--dp-noise", "2", "--quiet", "--rounds", "3", "--participation", "0.5"]


def test_epsilon_is_in_every_round_and_in_the_summary(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["run", "--task", "synthetic", "--clients", "8", "--out", str(out), *DP]) == 0
    logs = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    spent = [log["privacy"]["epsilon"] for log in logs]
    assert 0 < spent[0] < spent[1] < spent[2]
    assert json.loads((out / "summary.json").read_text())["privacy"] == logs[-1]["privacy"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--method", "scaffold", *DP], "not offered with dp_clip"),
        (["--dp-noise", "1"], "set dp_clip too"),
        (["--dp-clip", "much"], "must be a number"),
        (["--dp-clip", "1", "--dp-noise", "1", "--dp-delta", "0.5"], "one over the clients"),
    ],
)
def test_refusals_are_one_line(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["run", "--task", "synthetic", "--out", str(tmp_path / "run"), *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
