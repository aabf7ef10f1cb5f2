"""What the theorems ask of tau and eta: by hand, chosen automatically, and said where violated."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.environments import theory
from equipoise.environments.tabular_task import TabularConfig
from equipoise.environments.theory import Coverage
from equipoise.methods.rl_tabular import FedAsynQEq, FedAsynQIm, FedSynQ
from equipoise.utils.errors import UsageError
from helpers import largest_difference

COVER = Coverage(mu_min=0.01, mu_avg=0.02, c_het=2.0, t_mix=7.0)


def small(method: Any, rounds: int = 20, **options: Any) -> Any:
    """A small run on two states and ten actions; its settings and its messages."""
    from equipoise.experiment.runner import run
    from equipoise.settings.experiment_config import ExperimentConfig

    place = {"task": "two-state", "sims": 3, "agents": 20, "rounds": rounds, "epsilon": 0.5}
    settings = ExperimentConfig.from_options({**place, "method": method, **options})
    return settings, run


def test_the_longest_period_by_hand() -> None:
    assert theory.max_tau(0.01, 0.9, 4) == 1 + 1  # 0.1 / (8 * 0.01) = 1.25
    assert theory.max_tau(0.001, 0.9, 4) == 1 + 12
    assert theory.max_tau(0.001, 0.9, 100) == 1 + 1  # 1/K rules: 0.01 / 0.008
    assert theory.max_tau(0.5, 0.99, 1) == 1


def test_eta_balances_forgetting_and_noise() -> None:
    assert theory.best_eta(0.9, 1000) == pytest.approx(0.14)
    assert theory.best_eta(0.9, 1000, mu=0.5) == pytest.approx(0.28)
    assert theory.best_eta(0.9, 10) == theory.MAX_ETA


def test_burn_in_by_hand() -> None:
    assert theory.burn_in(0.9, 0.1) == pytest.approx(100.0)
    assert theory.burn_in(0.9, 0.1, COVER) == pytest.approx(5000.0 + 350.0)
    assert theory.burn_in(0.9, 0.1, replace(COVER, mu_avg=0.0)) == math.inf


def test_each_violated_condition_has_its_sentence() -> None:
    assert theory.condition_warnings(0.001, 10, 100_000, 0.9, 4) == ()
    (late,) = theory.condition_warnings(0.001, 14, 100_000, 0.9, 4)
    assert "tau is 14" in late
    assert "up to tau 13" in late
    (short,) = theory.condition_warnings(0.001, 10, 100, 0.9, 4)
    assert "about 10000 pass" in short
    (missed,) = theory.condition_warnings(0.001, 10, 10, 0.9, 4, replace(COVER, mu_avg=0.0))
    assert "miss some" in missed


@pytest.mark.parametrize("name", ["fedsynq", "fedasynq-eq", "fedasynq-im", "fedasynq-ta"])
def test_auto_is_the_run_with_the_numbers_that_it_names(name: str, tmp_path: Path) -> None:
    told: list[str] = []
    settings, run = small(name, eta="auto", tau=4)
    run(settings, tmp_path / "auto", on_message=told.append)
    eta = float(told[0].split("eta ")[1].split(",")[0])
    method = settings.method
    exact, tau = method.eta_and_tau(_task(settings), 20)
    assert (tau, eta) == (4, pytest.approx(exact, rel=1e-3))
    fixed, _ = small(name, eta=exact, tau=4)
    run(fixed, tmp_path / "fixed")
    assert largest_difference(_table(tmp_path / "auto"), _table(tmp_path / "fixed")) == 0.0


def test_tau_is_the_longest_that_the_theory_allows_or_the_mixing_time() -> None:
    settings, _ = small("fedsynq", eta=0.001, tau="auto")
    assert settings.method.eta_and_tau(_task(settings), 20) == (0.001, 1 + 6)  # 0.05 / 0.008
    both, _ = small("fedasynq-im", eta="auto", tau="auto", epsilon=1.0)
    task = _task(both)
    eta, tau = both.method.eta_and_tau(task, 5000)
    assert tau == math.ceil(task.coverage.t_mix)
    assert eta == pytest.approx(theory.best_eta(task.mdp.gamma, 5000 * tau, task.coverage.mu_avg))


def test_what_the_theory_cannot_answer_is_refused() -> None:
    settings, _ = small("fedasynq-eq", eta="auto", epsilon=0.0, agents=1)
    with pytest.raises(UsageError, match="give --eta a number"):
        _task(settings)
    with pytest.raises(UsageError, match="by --rounds"):
        FedSynQ(tau="auto", steps=100).num_rounds(10, TabularConfig())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="or auto"):
        FedAsynQIm(tau="often")  # type: ignore[arg-type]
    assert FedAsynQEq(tau="auto").tau == 0  # type: ignore[arg-type]


def _task(settings: Any) -> Any:
    from equipoise.experiment.build import build_task

    return build_task(settings)


def _table(folder: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(folder / "models" / "global.safetensors")
