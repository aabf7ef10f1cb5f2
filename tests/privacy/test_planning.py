"""Noise for a given epsilon, and runs that end within it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.privacy.accountant import GaussianAccountant, gaussian_epsilon
from equipoise.privacy.config import PrivacyConfig
from equipoise.privacy.planning import RoundPlan, choose_noise
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError

LIMIT = PrivacyConfig(dp_clip=1.0, max_epsilon=8.0)


def test_the_chosen_noise_is_that_of_the_closed_form() -> None:
    """All of 10 clients in 4 rounds: mu^2 = 4 * 4 / (9 sigma^2), and epsilon(mu^2) = 8."""
    noise = choose_noise(RoundPlan(10, 1.0, 4), LIMIT)
    epsilon = gaussian_epsilon(4 * 4 / (9 * noise**2), 1e-5)
    assert epsilon <= 8
    assert gaussian_epsilon(4 * 4 / (9 * (0.99 * noise) ** 2), 1e-5) > 8


@pytest.mark.parametrize("rounds", [1, 7, 300])
@pytest.mark.parametrize("limit", [0.1, 3.0, 200.0])
def test_the_chosen_noise_is_enough_and_hardly_more(rounds: int, limit: float) -> None:
    plan = RoundPlan(20, 0.5, rounds, seed=3, amplified=False)
    config = replace(LIMIT, max_epsilon=limit)
    noise = choose_noise(plan, config)
    assert plan.epsilon(replace(config, dp_noise=noise)) <= limit
    assert plan.epsilon(replace(config, dp_noise=0.985 * noise)) > limit


def test_secret_cohorts_need_less_noise() -> None:
    hidden = RoundPlan(200, 0.05, 20)
    assert choose_noise(hidden, LIMIT) < choose_noise(replace(hidden, amplified=False), LIMIT)


def test_any_epsilon_has_its_noise() -> None:
    """delta(0) = 2 Phi(mu / 2) - 1: below that mu, epsilon is 0."""
    noise = choose_noise(RoundPlan(5, 1.0, 10), replace(LIMIT, max_epsilon=1e-12))
    mu = math.sqrt(10 * 4 / (4 * noise**2))
    assert math.erf(mu / math.sqrt(8)) == pytest.approx(1e-5, rel=0.02)


def test_a_round_needs_as_many_replies_as_keep_it_within_the_limit() -> None:
    """One round with K replies: mu^2 = 4 / (sigma^2 (K - 1))."""
    config = PrivacyConfig(dp_clip=1.0, dp_noise=2.0)
    accountant = GaussianAccountant(config, 10, 10, True, amplified=False)
    asked = np.arange(10)
    limit = gaussian_epsilon(4 / (4 * 6), 1e-5)
    assert accountant.min_replies_within(asked, limit * 1.001) == 7
    assert accountant.min_replies_within(asked, limit * 0.999) == 8
    assert accountant.min_replies_within(asked, 1e-3) is None
    assert accountant.min_replies_within(asked, 1e6) == 1
    assert accountant.privacy_spent().uploads == 0  # nothing was counted


SMALL = ["run", "--task", "synthetic", "--clients", "6", "--dp-clip", "1", "--quiet"]


def spent(out: Path) -> list[float]:
    return [record.privacy.epsilon for record in RunFolder(out).records() if record.privacy]


def test_without_noise_the_planned_rounds_use_the_budget(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main([*SMALL, "--rounds", "4", "--max-epsilon", "5", "--out", str(out)]) == 0
    assert len(spent(out)) == 4
    assert 4.9 < spent(out)[-1] <= 5
    config = json.loads((out / "config.json").read_text())
    expected = choose_noise(RoundPlan(6, 1.0, 4), replace(LIMIT, max_epsilon=5.0))
    assert (config["dp_noise"], config["max_epsilon"]) == (expected, 5)


def test_a_run_ends_before_the_budget_is_passed(tmp_path: Path) -> None:
    """Noise for three rounds: the fourth is not run, and the third model is kept."""
    limit = gaussian_epsilon(3 * 4 / (4 * 5), 1e-5)
    given = ["--dp-noise", "2", "--max-epsilon", f"{limit * 1.01}"]
    out = tmp_path / "run"
    assert main([*SMALL, "--rounds", "9", *given, "--out", str(out)]) == 0
    assert len(spent(out)) == 3
    assert spent(out)[-1] <= limit * 1.01
    summary = RunFolder(out).read_summary()
    assert "another round would take epsilon above max_epsilon" in (summary.stopped or "")
    assert "client-level" in (summary.stopped or "")
    three = tmp_path / "three"
    assert main([*SMALL, "--rounds", "3", "--dp-noise", "2", "--out", str(three)]) == 0
    same = [folder / "models" / "global.safetensors" for folder in (out, three)]
    assert same[0].read_bytes() == same[1].read_bytes()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--max-epsilon", "5"], "set dp_clip too"),
        (["--dp-clip", "1", "--dp-noise", "0.1", "--max-epsilon", "1"], "one round with dp_noise"),
        (["--dp-clip", "1", "--max-epsilon", "-1"], "max_epsilon"),
    ],
)
def test_limits_that_allow_nothing_are_refused(
    given: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = ["run", "--task", "synthetic", "--clients", "6", *given, "--out", str(out)]
    assert main(command) == 2
    assert says in capsys.readouterr().err
    assert not out.exists()


def test_clients_and_server_of_a_deployment_choose_the_same_noise() -> None:
    given = {"task": "synthetic", "clients": 6, "rounds": 4, "dp_clip": 1.0, "max_epsilon": 5.0}
    settings = ExperimentConfig.from_options(given).with_chosen_noise(6, is_simulation=False)
    again = ExperimentConfig.from_options(given).with_chosen_noise(6, is_simulation=False)
    assert settings.privacy == again.privacy
    assert settings.privacy.dp_noise > 0
    assert settings.with_chosen_noise(6, is_simulation=False) == settings


def test_the_plan_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """100 clients, 50 rounds, sigma 0.8: 8.6 and 231, as the page on privacy says."""
    assert main(["privacy", "plan", "--clients", "100", "--rounds", "50", "--dp-noise", "0.8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rounds", "cohort", "noise", "epsilon", "epsilon_server"]
    row = next(line.split() for line in lines if line.split()[:2] == ["50", "100"])
    assert float(row[3]) == pytest.approx(8.6, abs=0.05)
    assert float(row[4]) == pytest.approx(231, abs=0.5)
    assert "client-level" in lines[-1]
    given = ["--rounds", "8", "--max-epsilon", "8", "--deployment", "--secure"]
    assert main(["privacy", "plan", "--clients", "20", "--participation", "0.5", *given]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert [int(row[0]) for row in rows] == [2, 4, 8, 16] * 2
    assert all(7.8 < float(row[3]) <= 8 for row in rows)
    assert all(row[3] == row[4] for row in rows)  # the server sees sums alone


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "either --max-epsilon or --dp-noise"),
        (["--max-epsilon", "1", "--dp-noise", "1"], "either --max-epsilon or --dp-noise"),
        (["--max-epsilon", "1", "--participation", "2"], r"must be in \(0, 1\]"),
        (["--max-epsilon", "1", "--dp-delta", "0.5"], "below 1/9"),
        (["--max-epsilon", "1", "--rounds", "0"], "clients and rounds"),
    ],
)
def test_wrong_plans_are_refused(given: list[str], says: str) -> None:
    from equipoise.cli.privacy import privacy

    with pytest.raises(UsageError, match=says):
        privacy(["plan", "--clients", "9", *given])


def test_nothing_stops_a_run_without_a_limit() -> None:
    assert not PrivacyConfig(dp_clip=1.0, dp_noise=1.0).needs_noise
    assert LIMIT.needs_noise
    assert LIMIT.has_noise
    assert math.isinf(RoundPlan(3, 1.0, 1).epsilon(PrivacyConfig(dp_clip=1.0)))
