"""Clipping and noise: hand-computed, the same on every executor, and refused where they would
promise nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from equipoise.core import Capabilities, ServerMessage, equal_weights, weighted_mean
from equipoise.methods import all_methods
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedper import FedPer
from equipoise.methods.local import Local
from equipoise.privacy.config import PrivacyConfig
from equipoise.utils.errors import UsageError
from equipoise.wrappers.differential_privacy import secret_normal, with_differential_privacy
from helpers import largest_difference, simulate, small_task

SOUND = (
    "dapfl",
    "ditto",
    "fedala",
    "fedavg",
    "fedavgm",
    "fedbabu",
    "fedper",
    "fedprox",
    "fedrecon",
    "fedrep",
)
SOUND += ("fedrod", "finetune", "lgfedavg", "local", "pfedme")


def protected(privacy: PrivacyConfig, sent: dict, trained: dict, draw: Any = None) -> dict:
    client: Any = SimpleNamespace(message=ServerMessage(sent, {}))
    return with_differential_privacy(FedAvg(), privacy, draw)._privatize(client, trained)[0]  # type: ignore[attr-defined]


def test_the_change_is_clipped_as_one_vector_over_all_parameters() -> None:
    """Change (3, 0; 4) has norm 5: clipped to 1 it is (0.6, 0; 0.8), and what was not sent is not
    touched.
    """
    sent = {
        "w": torch.tensor([0.0, 2.0]),
        "b": torch.tensor([1.0]),
        "own": torch.tensor([torch.nan]),
    }
    out = protected(
        PrivacyConfig(1.0), sent, {"w": torch.tensor([3.0, 2.0]), "b": torch.tensor([5.0])}
    )
    assert out["w"].tolist() == pytest.approx([0.6, 2.0])
    assert out["b"].tolist() == pytest.approx([1.8])
    assert sorted(out) == ["b", "w"]


def test_a_change_within_the_bound_stays_to_the_bit() -> None:
    """0.1 - 0.3 + 0.3 is not 0.1 in float32: nothing may be taken apart and put together again."""
    trained = {"w": torch.tensor([0.1, 1e-8])}
    assert torch.equal(
        protected(PrivacyConfig(5.0), {"w": torch.tensor([0.3, 7.0e-1])}, trained)["w"],
        trained["w"],
    )


def test_noise_is_added_after_clipping_with_standard_deviation_sigma_c() -> None:
    ones = protected(
        PrivacyConfig(2.0, 0.25),
        {"w": torch.zeros(1)},
        {"w": torch.tensor([8.0])},
        lambda c, s, n: torch.ones(s),
    )
    assert ones["w"].tolist() == [2.0 + 0.25 * 2.0]


def test_the_seed_s_noise_on_the_mean_of_six_has_the_right_size() -> None:
    task = small_task("linear", features=400)
    quiet, noisy = (
        with_differential_privacy(FedAvg(), PrivacyConfig(3.0, sigma)) for sigma in (0.0, 0.5)
    )
    gap = simulate(noisy, task, 1).params["weight"] - _equal_mean(quiet, task)["weight"]
    assert float(gap.std()) == pytest.approx(0.5 * 3.0 / math.sqrt(6), rel=0.05)
    assert abs(float(gap.mean())) < 5 * float(gap.std()) / math.sqrt(gap.numel())


def _equal_mean(method: Any, task: Any) -> dict:
    """The mean of the uploads of round 1, everybody alike."""
    kept: list[Any] = []

    class Watching(type(method)):  # type: ignore[misc]
        def aggregate(self, s: Any, ids: Any, up: Any, weights: Any) -> Any:
            kept.append(weighted_mean(up.params, equal_weights(ids)))
            return super().aggregate(s, ids, up, weights)

    simulate(Watching(method.method, method.privacy, method.draw), task, 1, "loop")
    return kept[0]


def no_noise(client: Any, shape: torch.Size, number: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def test_under_noise_every_client_counts_alike_whatever_the_method_weighs_by() -> None:
    task = small_task("mlp")
    method = with_differential_privacy(FedAvg(), PrivacyConfig(100.0, 0.001), no_noise)
    assert (
        largest_difference(
            simulate(method, task, 1).params,
            _equal_mean(with_differential_privacy(FedAvg(), PrivacyConfig(100.0)), task),
        )
        < 1e-10
    )
    by_size = simulate(FedAvg(), task, 1).params
    assert largest_difference(simulate(method, task, 1).params, by_size) > 1e-4


def test_a_method_cannot_see_single_uploads_under_noise() -> None:
    seen: list[Any] = []

    class Curious(FedAvg):
        capabilities: ClassVar[Capabilities] = replace(FedAvg.capabilities, aggregates_by_sum=False)

        def aggregation_weights(self, s: Any, ids: Any, up: Any) -> Any:
            seen.append(up.params["weight"])
            return super().aggregation_weights(s, ids, up)

    simulate(with_differential_privacy(Curious(), PrivacyConfig(1.0, 0.1)), small_task("linear"), 1)
    assert torch.equal(seen[0], seen[0][:1].expand_as(seen[0]))


@pytest.mark.parametrize("name", SOUND)
def test_without_noise_and_bound_a_private_method_is_the_method_to_the_bit(name: str) -> None:
    method, task = all_methods()[name](), small_task("mlp")
    for executor in ("loop", "stacked"):
        one, other = (
            simulate(method, task, 2, executor),
            simulate(with_differential_privacy(method, PrivacyConfig(math.inf)), task, 2, executor),
        )
        assert largest_difference(one.state_dict(), other.state_dict()) == 0


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", SOUND)
def test_loop_equals_stacked_under_privacy(name: str, participation: float) -> None:
    method, task = (
        with_differential_privacy(all_methods()[name](), PrivacyConfig(0.5, 0.3)),
        small_task("mlp"),
    )
    loop, stacked = (
        simulate(method, task, 2, executor, participation) for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-9


def test_bytes_and_blocks_are_those_of_the_method() -> None:
    task = small_task("mlp")
    one, other = (
        simulate(FedPer(), task, 1),
        simulate(with_differential_privacy(FedPer(), PrivacyConfig(0.5, 0.3)), task, 1),
    )
    assert one.logs[0].bytes == other.logs[0].bytes
    head = task.info.blocks["head"]
    assert (
        largest_difference({n: one.params[n] for n in head}, {n: other.params[n] for n in head})
        == 0
    )
    assert (
        simulate(with_differential_privacy(Local(), PrivacyConfig(0.5, 0.3)), task, 1)
        .logs[0]
        .bytes.up
        == 0
    )


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("scaffold", {}, "keep a memory of the uploads"),
        ("feddyn", {}, "keep a memory of the uploads"),
        ("page", {}, "'received_loss', which would leave it unprotected"),
        ("autopilot", {}, "'loss', which would leave it unprotected"),
        ("fedex", {}, "which would leave it unprotected"),
        ("fedpolicy", {}, "which would leave it unprotected"),
        ("feddbe", {}, "which would leave it unprotected"),
        ("fedpolicy", {"policy": "full:0.99,none"}, "has no reference to clip its update of it"),
        ("fedpolicy", {"policy": "trained"}, "which would leave it unprotected"),
        (
            "fedpolicy",
            {"policy": "backbone", "block_weights": "off"},
            "has no reference to clip its update of it",
        ),
    ],
)
def test_an_unsound_method_is_refused_with_the_reason(name: str, options: dict, why: str) -> None:
    task = small_task("mlp")
    with pytest.raises(UsageError, match=why):
        with_differential_privacy(all_methods()[name](**options), PrivacyConfig(1.0, 1.0)).check(
            task, task.info.training
        )


def test_refusal_costs_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    task = small_task("mlp")
    monkeypatch.setattr(task, "fit", None)
    with_differential_privacy(all_methods()["fedrep"](), PrivacyConfig(1.0, 1.0)).check(
        task, task.info.training
    )


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"dp_clip": -1.0}, "dp_clip is -1"),
        ({"dp_noise": 1.0}, "set dp_clip too"),
        ({"dp_clip": math.inf, "dp_noise": 1.0}, "set dp_clip too"),
        ({"dp_clip": 1.0, "dp_noise": -0.5}, "dp_noise is -0.5"),
        ({"dp_clip": 1.0, "dp_delta": 0.0}, "dp_delta is 0"),
        ({"dp_clip": 1.0, "dp_delta": 1.0}, "dp_delta is 1"),
    ],
)
def test_bad_values_are_refused(values: dict, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        PrivacyConfig(**values)


def test_a_delta_that_gives_a_client_away_is_refused() -> None:
    task = small_task("linear")
    with pytest.raises(UsageError, match="below 1/6"):
        with_differential_privacy(FedAvg(), PrivacyConfig(1.0, 1.0, 0.2)).check(
            task, task.info.training
        )


def test_a_deployment_s_noise_is_normal_and_never_twice_the_same() -> None:
    client: Any = None
    one, other = (secret_normal(client, torch.Size((100, 200)), 0) for _ in range(2))
    assert float(one.std()) == pytest.approx(1.0, rel=0.05)  # ten standard errors
    assert abs(float((one * other).mean())) < 0.1
    assert bool(torch.isfinite(one).all())
