"""A bound that follows a quantile of the changes' lengths: by hand, within the same budget, refused
where unsound.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from equipoise.cli import main
from equipoise.core import ClientUpdate, Server
from equipoise.methods.fedavg import FedAvg
from equipoise.privacy.config import BIT_SHARE, PrivacyConfig
from equipoise.records.rounds import PrivacySpent
from equipoise.records.scores import Evaluations, Scores
from equipoise.records.summary import validation_score
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from equipoise.wrappers.differential_privacy import (
    CLIP_KEY,
    CLIP_LR,
    MAX_NOISE_STDS,
    UNCLIPPED_KEY,
    with_differential_privacy,
)
from helpers import largest_difference, simulate, small_task


@pytest.mark.parametrize("noise", [0.3, 0.8, 5.0])
def test_bit_and_change_together_cost_what_dp_noise_says(noise: float) -> None:
    """1 / multiplier^2 adds up: a change moves by 2 C, a bit by 1."""
    adaptive = PrivacyConfig(1.0, noise, dp_quantile=0.5)
    cost = (2 / adaptive.change_noise) ** 2 + (1 / adaptive.bit_noise) ** 2
    assert cost == pytest.approx((2 / noise) ** 2)
    assert (1 / adaptive.bit_noise) ** 2 / cost == pytest.approx(BIT_SHARE)
    assert PrivacyConfig(1.0, noise).change_noise == noise


def test_the_bound_follows_by_hand() -> None:
    """Of four changes one is within C = 2, half of them should be: C <- 2 exp(-0.2 (1/4 - 1/2))."""
    task = small_task("linear")
    method = with_differential_privacy(FedAvg(), PrivacyConfig(2.0, 0.0, dp_quantile=0.5))
    params = task.init_params(0)
    state = method.init_server(task, params)
    s = Server(task, task.info.training, params, state, 0, 1, 1)
    up = ClientUpdate({name: value.expand(4, *value.shape) for name, value in params.items()})
    up.metrics[UNCLIPPED_KEY] = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    _, after = method.aggregation_weights(s, torch.arange(4), up)
    assert float(after[CLIP_KEY]) == pytest.approx(2 * math.exp(CLIP_LR / 4))
    assert s.logged == {CLIP_KEY: 2.0, UNCLIPPED_KEY: 0.25}


def test_without_noise_the_bound_finds_the_quantile() -> None:
    """From a hundred times too large and too small, half of the changes end within it."""
    task = small_task("linear")
    ends = []
    for start in (0.01, 100.0):
        run = simulate(
            with_differential_privacy(FedAvg(), PrivacyConfig(start, 0.0, dp_quantile=0.5)),
            task,
            120,
        )
        shares = [log.logged[UNCLIPPED_KEY] for log in run.logs[-20:]]  # type: ignore[attr-defined]
        assert sum(shares) / len(shares) == pytest.approx(
            0.5, abs=0.17
        )  # 6 clients: a third or two thirds
        ends.append(float(run.server_state[CLIP_KEY]))
    assert ends[0] == pytest.approx(ends[1], rel=0.3)


def test_executors_agree_and_noise_is_scaled_by_the_bound_of_the_round() -> None:
    task, method = (
        small_task("linear"),
        with_differential_privacy(FedAvg(), PrivacyConfig(0.5, 0.4, dp_quantile=0.7)),
    )
    loop, stacked = (simulate(method, task, 4, executor) for executor in ("loop", "stacked"))
    assert largest_difference(loop.params, stacked.params) < 1e-5
    assert float(loop.server_state[CLIP_KEY]) == pytest.approx(
        float(stacked.server_state[CLIP_KEY])
    )
    assert float(loop.server_state[CLIP_KEY]) != 0.5
    allowed = method.report_ranges[UNCLIPPED_KEY]
    assert allowed.low == pytest.approx(-MAX_NOISE_STDS * 0.4 / (2 * math.sqrt(BIT_SHARE)))
    assert not allowed.first_violation(torch.tensor([0.0, 1.0])).isfinite().any()


def test_refusals() -> None:
    with pytest.raises(UsageError, match="dp_quantile adapts a bound: set dp_clip"):
        PrivacyConfig(0.0, 0.0, dp_quantile=0.5)
    with pytest.raises(UsageError, match="secure is not offered with dp_quantile"):
        ExperimentConfig.from_options(
            {"secure": True, "dp_clip": 1.0, "dp_noise": 1.0, "dp_quantile": 0.5}
        )


def test_under_noise_the_best_round_is_chosen_by_public_rows_alone() -> None:
    """What clients' own validation rows say has no noise: it counts only
    where nothing is promised.
    """
    val = Evaluations(global_=Scores({"acc": 0.5}), personal=Scores({"acc": 0.9}))
    record = simulate(
        with_differential_privacy(FedAvg(), PrivacyConfig(1.0)), small_task("linear"), 1
    ).logs[0]  # type: ignore[attr-defined]
    plain, clipped, noised = (
        replace(record, val=val, privacy=spent)
        for spent in (None, PrivacySpent(None, None, 1e-5, 1), PrivacySpent(3.0, 40.0, 1e-5, 1))
    )
    assert (
        validation_score(plain, "acc", True)
        == validation_score(clipped, "acc", True)
        == pytest.approx(0.7)
    )
    assert validation_score(noised, "acc", True) == 0.5


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = "--clients 6 --rounds 3 --samples 60 --dp-clip 1 --dp-noise 1".split()
    for out, more in (("fixed", []), ("adaptive", ["--dp-quantile", "0.5"])):
        assert main(["run", *given, *more, "--out", str(tmp_path / out)]) == 0
    assert "client-level: all the data of one client, not one row" in " ".join(
        capsys.readouterr().out.split()
    )
    spent = [
        json.loads((tmp_path / out / "summary.json").read_text())["privacy"]
        for out in ("fixed", "adaptive")
    ]
    assert spent[0] == spent[1]
    logs = [
        json.loads(line)
        for line in (tmp_path / "adaptive" / "rounds.jsonl").read_text().splitlines()
    ]
    clips = [log["dp_clip"] if "dp_clip" in log else log["logged"]["dp_clip"] for log in logs]
    assert clips[0] == 1.0
    assert clips[1] != 1.0
