"""What a method decides is known from its hooks; decision 0 is a hook; wrappers forward all that
they leave alone.
"""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from equipoise.core import DelegatingMethod, Method, Server
from equipoise.core.method import HOOKS
from equipoise.methods import all_methods, find_method
from equipoise.privacy.config import PrivacyConfig
from equipoise.utils import rng
from equipoise.utils.errors import UsageError
from equipoise.wrappers.differential_privacy import DifferentialPrivacy, with_differential_privacy
from equipoise.wrappers.robust_aggregation import with_robust_aggregation
from helpers import largest_difference, simulate, small_task


@pytest.mark.parametrize(
    ("name", "decides"),
    [
        ("fedavg", set()),
        ("fedprox", {"train"}),
        ("fedavgm", {"apply_sums"}),
        (
            "scaffold",
            {"distribute", "train", "upload", "aggregation_weights", "partial_sums", "apply_sums"},
        ),
        ("ditto", {"personal_model"}),
    ],
)
def test_hooks_of_its_own(name, decides):
    assert decides <= find_method(name)().overridden_hooks
    if not decides:
        assert find_method(name)().overridden_hooks == frozenset()


def test_a_wrapper_decides_what_it_replaces_and_what_its_base_does():
    wrapped = with_differential_privacy(find_method("fedavgm")(), PrivacyConfig(dp_clip=1.0))
    assert isinstance(wrapped, DifferentialPrivacy)
    assert wrapped.overridden_hooks == {
        "distribute",
        "upload",
        "aggregation_weights",
        "learn",
        "apply_sums",
        "aggregate",
    }
    assert find_method("page")(base="scaffold").overridden_hooks >= {
        "configure_training",
        "aggregation_weights",
        "distribute",
        "train",
    }
    assert "receive" not in find_method("page")().overridden_hooks


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, method in all_methods().items()
        if method().capabilities.learner_kind == "gradient"
    ],
)
def test_forwarding_alone_changes_nothing(name):
    @dataclass(frozen=True)
    class Same(DelegatingMethod):
        method: Method
        name: ClassVar[str] = "same"

        @property
        def inner(self) -> Method:
            return self.method

    task, method = small_task("mlp"), find_method(name)()
    plain, wrapped = simulate(method, task, 2), simulate(Same(method), task, 2)
    assert largest_difference(plain.params, wrapped.params) == 0
    assert largest_difference(plain.store.scores, wrapped.store.scores) == 0
    assert largest_difference(plain.store.state, wrapped.store.state["base"]) == 0
    assert Same(method).overridden_hooks == method.overridden_hooks


@dataclass(frozen=True)
class Oldest(Method):
    """FedAvg with the clients of lowest number."""

    name: ClassVar[str] = "oldest"
    count: int = 2

    def select_clients(self, server: Server):
        return torch.arange(self.count), server.state


def test_decision_0_by_default_is_the_cohort_of_the_seed():
    task = small_task()
    s = Server(task, task.info.training, {}, {}, seed=5, round=3, num_rounds=9, participation=0.5)
    ids, state = Method().select_clients(s)
    assert ids.tolist() == rng.sample_cohort(5, 3, task.info.num_clients, 0.5).tolist()
    assert state == {}


def test_decision_0_of_a_methods_own():
    run = simulate(Oldest(), small_task(), 3)
    assert sorted(run.store.ids.tolist()) == [0, 1]
    assert run.store.counts["rounds"].tolist() == [3, 3]
    both = simulate(with_robust_aggregation(Oldest(), "median"), small_task(), 3)
    assert sorted(both.store.ids.tolist()) == [0, 1]


@pytest.mark.parametrize("ids", [[], [1, 0], [0, 0], [-1, 0], [5, 6], [0.0, 1.0]])
def test_decision_0_that_is_no_cohort(ids):
    @dataclass(frozen=True)
    class Wrong(Method):
        name: ClassVar[str] = "wrong"

        def select_clients(self, server: Server):
            return torch.tensor(ids), server.state

    with pytest.raises(UsageError, match=r"wrong\.select_clients must give"):
        simulate(Wrong(), small_task(), 1)


def test_noise_counts_on_chance_alone():
    task = small_task()
    with pytest.raises(UsageError, match="chooses who takes part"):
        with_differential_privacy(
            Oldest(), PrivacyConfig(dp_clip=1.0, dp_noise=1.0, dp_delta=1e-3)
        ).check(task, task.info.training)


def test_every_hook_is_forwarded():
    """A hook that Wrapper forgot would silently be FedAvg's."""
    assert set(HOOKS) <= set(vars(DelegatingMethod))
