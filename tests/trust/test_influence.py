"""Bounds on one client's influence, by hand, and the attacks that got past the guards before."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.core import ClientUpdate, LocalHParams
from equipoise.core.method import weighted_mean
from equipoise.core.report_validation import (
    MAX_OPPOSITION,
    MIN_COHORT,
    MIN_CROWD,
    MIN_MEAN_NORM,
    InfluenceBounds,
    believed_sizes,
    hparam_violations,
    influence_factors,
    may_oppose,
    opposition_factors,
    reference_weights,
    scale_weights,
    shrink_changes,
    shrink_factors,
    shrink_update,
)
from equipoise.flower import codec
from equipoise.methods import all_methods
from equipoise.simulation.aggregation_guard import (
    COMMON_START_BOUNDS,
    AcceptedReplies,
    Aggregation,
    mean_change,
)
from equipoise.simulation.attacks import MODEL_ATTACKS, hostile_clients, with_attack
from equipoise.simulation.executors import Loop, Stacked
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.wrappers.robust_aggregation import with_robust_aggregation
from flower.test_remote import Here, federate
from helpers import largest_difference, simulate, small_task

f64 = torch.float64


def test_sizes_are_brought_down_to_a_multiple_of_the_trimmed_maximum():
    """Of 2, 3, 1, 4, 12 the trimmed maximum (without the largest) is 4."""
    sizes = torch.tensor([2.0, 3.0, 1.0, 4.0, 12.0], dtype=f64)
    assert shrink_factors(sizes, 1.5).tolist() == [1, 1, 1, 1, 0.5]
    assert shrink_factors(sizes, 3.0).tolist() == [1] * 5
    assert shrink_factors(sizes, math.inf).tolist() == [1] * 5
    assert shrink_factors(sizes[:4], 1.5).tolist() == [1] * 4  # too few to tell


def test_clients_that_did_not_move_do_not_lower_the_bound():
    sizes = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0], dtype=f64)
    assert shrink_factors(sizes, 1.5).tolist() == pytest.approx([1] * 8 + [1 / 6])
    assert shrink_factors(torch.zeros(9, dtype=f64), 1.5).tolist() == [1] * 9


@pytest.mark.parametrize("largest", [1e308, math.inf])
def test_hostile_sizes_count_nothing(largest):
    sizes = torch.tensor([1.0] * 9 + [largest], dtype=f64)
    factors = shrink_factors(sizes, 1.5)
    assert factors[:9].tolist() == [1] * 9
    assert 0 <= float(factors[9]) < 1e-300


def test_influence_is_weight_times_norm():
    """Equal weights 0.1: only the long change is bounded. A tenfold weight is bounded first."""
    weights = torch.full((10,), 0.1, dtype=f64)
    norms = torch.ones(10, dtype=f64)
    norms[3] = 4.0
    expected = [1.0] * 10
    expected[3] = 0.25
    assert influence_factors(weights, norms, 1.0).tolist() == pytest.approx(expected)
    weights[3] = 1.0  # ten times as much
    expected[3] = 1 / 40
    assert influence_factors(weights, norms, 1.0).tolist() == pytest.approx(expected)
    by_name = {"a": weights, "b": weights[:, None].expand(10, 2)}
    assert influence_factors(by_name, norms, 1.0).tolist() == pytest.approx(expected)


def test_a_crowd_of_equal_sizes_lets_nobody_count_more():
    """Equal weights: a tenfold weight and a fourfold norm come down to those of the others."""
    weights = torch.full((40,), 0.1, dtype=f64)
    norms = torch.ones(40, dtype=f64)
    assert influence_factors(weights, norms, 1.0).tolist() == [1.0] * 40
    weights[3] = 1.0
    norms[3] = 4.0
    expected = [1.0] * 40
    expected[3] = 1 / 40
    assert influence_factors(weights, norms, 1.0).tolist() == pytest.approx(expected)
    assert influence_factors(weights, norms, math.inf).tolist() == [1.0] * 40


def test_a_crowd_of_spread_sizes_keeps_its_large_clients():
    """Median 1 and trimmed maximum 4: weights up to 4 * 4^1.5 = 32, norms up to sqrt(k)."""
    weights = torch.ones(40, dtype=f64)
    weights[:9] = 4.0
    norms = torch.ones(40, dtype=f64)
    weights[0] = 16.0  # four times the trimmed maximum: may move twice as far
    norms[0] = 2.0
    assert influence_factors(weights, norms, 1.0).tolist() == [1.0] * 40
    norms[0] = 4.0
    norms[20] = 4.0  # a small client may not
    weights[1] = 64.0
    expected = [1.0] * 40
    expected[0] = 0.5
    expected[1] = 0.5
    expected[20] = 0.25
    assert influence_factors(weights, norms, 1.0).tolist() == pytest.approx(expected)


def test_a_tenth_of_a_crowd_cannot_raise_its_bounds():
    weights = torch.ones(40, dtype=f64)
    weights[:4] = 1e300
    factors = influence_factors(weights, torch.ones(40, dtype=f64), 1.0)
    assert factors[4:].tolist() == [1.0] * 36
    assert float((factors * weights)[:4].max()) == pytest.approx(1.0)


def test_a_crowd_of_nearly_vanished_weights_has_no_bound_on_them():
    weights = torch.full((40,), 1e-250, dtype=f64)
    weights[:10] = 1.0
    assert influence_factors(weights, torch.ones(40, dtype=f64), 1.0).tolist() == [1.0] * 40


def test_who_points_against_the_others_counts_by_their_mean():
    """Four changes of +1 and one of -v: the others' mean is 1, the bound on v is 2."""

    def factors(v, weights):
        weights = torch.tensor(weights, dtype=f64)
        changes = torch.tensor([1.0, 1.0, 1.0, 1.0, -v], dtype=f64)
        mean = (weights * changes).sum()
        return opposition_factors(weights, changes.abs(), changes * mean, abs(float(mean)))

    equal = [0.2] * 5
    assert factors(MAX_OPPOSITION, equal).tolist() == [1.0] * 5
    # Even where it turns the mean around: the others are compared with what remains without each.
    assert factors(8.0, equal)[4] == pytest.approx(MAX_OPPOSITION / 8)
    heavy = [0.1, 0.1, 0.1, 0.1, 0.6]
    assert factors(4.0, heavy)[4] == pytest.approx(MAX_OPPOSITION / 4)
    still = opposition_factors(
        torch.full((5,), 0.2, dtype=f64), torch.zeros(5, dtype=f64), torch.zeros(5, dtype=f64), 0.0
    )
    assert still.tolist() == [1.0] * 5


def opposition(changes, weights):
    """Return the factors of changes `[K, d]`, and whether the quick look says that any may be."""
    mean = weights @ changes
    norms = changes.norm(dim=1)
    factors = opposition_factors(weights, norms, changes @ mean, float(mean.norm()))
    return factors, may_oppose(weights, norms, float(mean.norm()))


def test_near_convergence_the_mean_has_no_direction():
    """Changes that sum to zero: each is 9 times the mean of the others, and against it."""
    changes = torch.eye(10, dtype=f64) - 0.1
    weights = torch.full((10,), 0.1, dtype=f64)
    factors, _ = opposition(changes, weights)
    assert factors.tolist() == [1.0] * 10


def test_the_mean_of_independent_changes_has_a_direction():
    """Nine orthogonal changes have a mean of 1/3; the tenth opposes it by 4 times its square."""
    changes = torch.eye(9, dtype=f64)
    changes = torch.cat([changes, changes.mean(0, keepdim=True) * -4.0])
    factors, _ = opposition(changes, torch.full((10,), 0.1, dtype=f64))
    assert factors.tolist() == pytest.approx([1.0] * 9 + [MAX_OPPOSITION / 4])


@pytest.mark.parametrize(("along", "factor"), [(1.01, MAX_OPPOSITION / 3), (0.99, 1.0)])
def test_the_mean_of_a_crowd_has_a_direction_from_a_share_of_the_median_norm_on(along, factor):
    """400 changes of norm 1; one more opposes their mean by 3 times its square."""
    along *= MIN_MEAN_NORM
    across = (1 - along**2) ** 0.5
    pairs = torch.tensor([[along, across], [along, -across]], dtype=f64).repeat(200, 1)
    changes = torch.cat([pairs, torch.tensor([[-3 * along, 0.0]], dtype=f64)])
    factors, _ = opposition(changes, torch.full((401,), 1 / 401, dtype=f64))
    assert factors.tolist() == pytest.approx([1.0] * 400 + [factor])


@settings(deadline=None, max_examples=200)
@given(
    clients=st.integers(5, 40),
    common=st.floats(0.0, 2.0),
    seed=st.integers(0, 10**6),
)
def test_the_quick_look_never_hides_a_limit(clients, common, seed):
    torch.manual_seed(seed)
    changes = torch.randn(clients, 6, dtype=f64) + common
    changes[0] = -3.0 * changes[1:].sum(0) * torch.rand(1, dtype=f64)
    weights = torch.rand(clients, dtype=f64)
    weights /= weights.sum()
    factors, may = opposition(changes, weights)
    assert may or bool((factors == 1).all())


def test_among_few_no_change_counts_with_more_than_the_median_norm():
    weights = torch.full((5,), 0.2, dtype=f64)
    norms = torch.tensor([1.0, 0.0, 1.0, 0.5, 10.0], dtype=f64)
    assert reference_weights(weights, norms).tolist() == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.02])
    crowd = torch.full((MIN_CROWD,), 1.0 / MIN_CROWD, dtype=f64)
    assert reference_weights(crowd, torch.rand(MIN_CROWD, dtype=f64)) is crowd


def test_a_change_across_the_mean_is_no_opposition():
    weights = torch.full((4,), 0.25, dtype=f64)
    changes = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 100.0]], dtype=f64)
    mean = weights @ changes
    factors = opposition_factors(weights, changes.norm(dim=1), changes @ mean, float(mean.norm()))
    assert factors.tolist() == [1.0] * 4


def test_what_a_client_loses_goes_to_all_in_proportion():
    weights = torch.tensor([0.1, 0.1, 0.8], dtype=f64)
    lowered = scale_weights(weights, torch.tensor([1.0, 1.0, 0.25], dtype=f64))
    assert lowered.tolist() == pytest.approx([0.25, 0.25, 0.5])
    assert scale_weights(weights, torch.ones(3)) is weights
    by_name = scale_weights(
        {"a": torch.tensor([[0.5, 0.0], [0.5, 0.0], [0.0, 1.0]], dtype=f64)},
        torch.tensor([1.0, 1.0, 0.5], dtype=f64),
    )
    assert by_name["a"].tolist() == [[0.5, 0.0], [0.5, 0.0], [0.0, 1.0]]


def test_shrunk_changes_by_hand_and_the_others_to_the_bit():
    origin = {"w": torch.tensor([1.0, 1.0])}
    params = {"w": torch.tensor([[3.0, 1.0], [0.1, 0.7]])}
    shrunk = shrink_changes(params, origin, torch.tensor([0.5, 1.0], dtype=f64))
    assert shrunk["w"][0].tolist() == [2.0, 1.0]
    assert torch.equal(shrunk["w"][1], params["w"][1])
    update = ClientUpdate(params, {"c": {"w": torch.tensor([[4.0, 2.0], [1.0, 1.0]])}, "n": 3})
    both = shrink_update(update, origin, torch.tensor([0.5, 1.0], dtype=f64))
    assert both.extra["c"]["w"].tolist() == [[2.0, 1.0], [1.0, 1.0]]
    assert both.extra["n"] == 3
    assert shrink_update(update, origin, torch.ones(2)) is update


def test_a_crowd_has_a_tighter_bound():
    bounds = InfluenceBounds(5.0, 1.5, 1.0)
    assert bounds.influence_ratio_of(MIN_CROWD - 1) == 1.5
    assert bounds.influence_ratio_of(MIN_CROWD) == 1.0


def test_claimed_sizes_are_believed_up_to_ten_times_the_median():
    assert believed_sizes({0: 100, 1: 120, 2: 10**300}) == {0: 100, 1: 120, 2: 1200}
    assert believed_sizes({0: 100, 1: 120, 2: -5}) == {0: 100, 1: 120, 2: 0}
    assert believed_sizes({}) == {}


@pytest.mark.parametrize("rate", [1e12, math.inf, math.nan, -0.1, 0.11])
def test_a_rate_that_nobody_asked_for_is_named(rate):
    asked = LocalHParams(torch.tensor([2, 2]), torch.tensor([0.1, 0.1], dtype=f64))
    used = LocalHParams(torch.tensor([2, 2]), torch.tensor([0.1, rate], dtype=f64))
    assert list(hparam_violations(used, asked, asked)) == [1]
    assert "learning rate" in hparam_violations(used, asked, asked)[1]


def test_epochs_that_nobody_asked_for_are_named():
    asked = LocalHParams(torch.tensor([2, 2]), torch.tensor([0.1, 0.1], dtype=f64))
    used = replace(asked, epochs=torch.tensor([2**62, 2]))
    assert hparam_violations(used, asked, asked) == {
        0: "its epochs are 4611686018427387904: must lie in [2, 2]"
    }
    single = replace(asked, lr=torch.tensor([0.1, 0.1], dtype=torch.float32))
    assert hparam_violations(single, asked, asked) == {}


@pytest.mark.parametrize(
    "name", ["fedavg", "page", "dapfl", "fedex", "autopilot", "fedhyper", "fedpolicy", "scaffold"]
)
def test_honest_rates_and_epochs_are_within_what_the_method_allows(name):
    """Also where the client chooses: nobody is left out of an honest run."""
    run = simulate(all_methods()[name](), small_task("mlp"), 4)
    assert all(not log.dropped for log in run.logs)


CHOOSING = [
    name
    for name, kind in sorted(all_methods().items())
    if "configure_training" in kind._overridden_hooks
]


@pytest.mark.parametrize("name", CHOOSING)
def test_whoever_lets_clients_choose_declares_the_range(name):
    declares = [k for k in all_methods()[name].__mro__ if "allowed_hparams" in vars(k)]
    assert declares[0].__name__ not in ("Method", "DelegatingMethod")


# --- the attacks of the findings ------------------------------------------------------------------


def attacked(name, attack, rule="", make=Stacked, rounds=6, clients=24):
    """A run of 24 clients, one of whom is hostile, and its records."""
    task = small_task("linear", clients=clients, size_sigma=0.0, samples=120)
    method = with_robust_aggregation(all_methods()[name](), rule)
    simulation = FederatedSimulation(
        method,
        task,
        task.info.training,
        RoundLoopConfig(rounds, 0, 1.0, "stacked", rounds, False),
        with_attack(make, attack) if attack else make,
    )
    return simulation, [simulation.run_round() for _ in range(rounds)]


def accuracy(records):
    return records[-1].test.global_["acc"]


@pytest.mark.parametrize("name", ["fedavg", "autopilot", "page", "scaffold"])
@pytest.mark.parametrize("attack", ["under", "cap", "steady", "rate-lie", "size-lie", "sleeper"])
def test_one_hostile_client_does_not_take_the_model(name, attack):
    """Each of these took the model to chance before, or to a fraction."""
    _, honest = attacked(name, "")
    _, records = attacked(name, f"{attack}:0.04")
    assert accuracy(records) > accuracy(honest) - 0.08


def test_a_false_rate_is_left_out_by_name_and_the_guard_is_logged():
    _, records = attacked("fedavg", "rate-lie:0.04")
    liar = int(hostile_clients(0, 24, 0.04)[0])
    for record in records:
        assert record.dropped == [liar]
        assert "learning rate is 1e+12" in record.rejected[liar]
        assert record.guards["rate or epochs"] == 1


def test_a_tenfold_size_counts_as_much_as_the_others():
    _, records = attacked("fedavg", "size-lie:0.04")
    liar = int(hostile_clients(0, 24, 0.04)[0])
    for record in records:
        assert record.shrunk[liar] < 0.1
        assert record.guards["influence"] >= 1


@pytest.mark.parametrize("name", ["fedavg", "autopilot"])
def test_trust_keeps_no_credit_for_a_sleeper(name):
    """Honest until the last round, then long: it is left out of that very round."""
    honest, _ = attacked(name, "", "trust")
    sleeper, records = attacked(name, "sleeper:0.04", "trust")
    assert records[-1].logged["kept"] < 24
    step = largest_difference(sleeper.params, honest.params)
    assert step < 0.1


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn", "fedavgm"])
def test_executors_agree_where_influence_is_bounded(name):
    loop, _ = attacked(name, "under:0.04", make=Loop, rounds=3)
    stacked, records = attacked(name, "under:0.04", make=Stacked, rounds=3)
    assert largest_difference(loop.params, stacked.params) < 1e-9
    assert any(record.shrunk for record in records)


def test_scaffolds_control_variates_are_bounded_too():
    """A false change of c_i moves c no further than the longest honest one does."""
    task = small_task("linear", clients=8)
    simulation = FederatedSimulation(
        all_methods()["scaffold"](),
        task,
        task.info.training,
        RoundLoopConfig(1, 0, 1.0, "stacked", 1, True),
        lambda *about: _FalseControl(*about),
    )
    simulation.run_round()
    norm = math.sqrt(sum(float(c.square().sum()) for c in simulation.server_state["c"].values()))
    assert norm < 10


class _FalseControl(Stacked):
    def run_clients(self, request):
        results = super().run_clients(request)
        for value in results.stack.update.extra["c"].values():
            value[2] = 1e5
        return results


def test_a_lie_in_the_rate_does_not_excuse_a_huge_model_over_the_wire(tmp_path):
    """Over the real codec: N(0, 1000) with a rate of 1e12 was used before."""

    def spoil(client, reply):
        if client != 2:
            return reply
        tree, about = codec.decode(reply)
        tree["hparams"]["lr"] = torch.full_like(tree["hparams"]["lr"], 1e12)
        torch.manual_seed(0)
        params = tree["update"]["params"]
        for name, value in params.items():
            params[name] = 1000 * torch.randn_like(value)
        return codec.encode(tree, about)

    method = all_methods()["fedavg"]()
    task = small_task("mlp")
    record = federate(method, task, Here(method, task, tmp_path, spoil)).run_round()
    assert record.dropped == [2]
    assert "learning rate" in record.rejected[2]


def test_a_client_counts_with_the_size_that_it_reported_first(tmp_path, caplog):
    method = all_methods()["fedavg"]()
    task = small_task("mlp")
    wire = Here(method, task, tmp_path)
    sizes = [dict.fromkeys(range(6), 10), {**dict.fromkeys(range(6), 10), 4: 90}]
    wire.present = lambda: sizes[min(1, len(wire.sent))]
    simulation = federate(method, task, wire)
    executor = simulation.executor
    assert executor._believed_sizes(sizes[0])[4] == 10
    assert executor._believed_sizes(sizes[1])[4] == 10
    assert "counts with the 10 that it reported first" in caplog.text
    assert executor._believed_sizes({**sizes[0], 7: 10**6})[7] == 100
    assert "client 7 says that it has 1000000 samples" in caplog.text


def test_a_crowd_believes_no_size_that_its_tail_does_not_hold():
    """Equal sizes leave no room; with median 10 and trimmed maximum 40 it is 40 * 4^1.5 = 320."""
    equal = dict.fromkeys(range(40), 10)
    assert believed_sizes({**equal, 7: 90})[7] == 10
    spread = {client: 10 if client < 25 else 40 for client in range(40)}
    assert believed_sizes({**spread, 7: 90})[7] == 90
    assert believed_sizes({**spread, 7: 10**6})[7] == 100  # ten times the median
    assert believed_sizes(dict.fromkeys(range(19), 10) | {3: 90})[3] == 90


def test_blocks_with_weights_of_their_own_are_compared_with_their_mean():
    """FedPolicy weighs blocks by when they were installed: a client counts with the largest."""
    aggregation = Aggregation(*[None] * 7, COMMON_START_BOUNDS)
    norms = torch.ones(MIN_COHORT, dtype=f64)

    def bounds_opposition(**weights):
        replies = AcceptedReplies(aggregation, None, None, None, norms, None, weights)
        return replies.bounds_opposition()

    ones = torch.ones(MIN_COHORT, dtype=f64)
    assert bounds_opposition(backbone=ones, head=ones * 0)
    assert not bounds_opposition(backbone=ones, head=ones[:, None].expand(-1, 3))


def test_an_attacker_that_knows_all_bounds_is_not_limited():
    """`cap` opposes by nearly what is allowed, and uses the rest of the norm across the mean."""
    _, records = attacked("fedavg", "cap:0.04", rounds=2)
    liar = int(hostile_clients(0, 24, 0.04)[0])
    assert all(liar not in record.shrunk for record in records)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_steady_liar_sends_one_direction_in_every_round_just_under_the_norm(name):
    """Five times the trimmed maximum of the honest norms, less the margin."""
    lies = []
    attack = MODEL_ATTACKS["steady"]

    def watched(cohort):
        lies.append((attack(cohort), cohort.usual_norm()))
        return lies[-1][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODEL_ATTACKS, "steady", watched)
        attacked(name, "steady:0.04", rounds=3)
    flat = [torch.cat([value.flatten() for value in lie.values()]).double() for lie, _ in lies]
    for change, (_, usual) in zip(flat, lies, strict=True):
        assert float(change.norm()) == pytest.approx(0.97 * 5 * usual)
        assert float(change @ flat[0] / change.norm() / flat[0].norm()) == pytest.approx(1.0)


@pytest.mark.parametrize("clients", [10, 19])
def test_one_of_few_that_opposes_the_others_hardly_moves_the_model(clients, monkeypatch):
    """Without the guard it takes more than three times as much."""

    def movement(attack):
        simulation, _ = attacked("fedavg", attack, rounds=3, clients=clients)
        moved = {name: simulation.params[name] - simulation.initial_params[name] for name in names}
        return torch.cat([value.flatten() for value in moved.values()])

    names = list(small_task("linear").init_params(0))
    honest = movement("")
    guarded = movement(f"under:{1 / clients}")
    monkeypatch.setattr(AcceptedReplies, "bounds_opposition", lambda replies: False)
    unguarded = movement(f"under:{1 / clients}")
    lost = float((honest - guarded) @ honest)
    assert lost < float((honest - unguarded) @ honest) / 3
    assert lost < 0.3 * float(honest @ honest)


def test_clients_that_send_no_change_do_not_switch_the_bound_on_opposition_off():
    aggregation = Aggregation(*[None] * 7, COMMON_START_BOUNDS)

    def bounds_opposition(weights, norms):
        replies = AcceptedReplies(aggregation, None, None, None, norms, None, weights)
        return replies.bounds_opposition()

    norms = torch.ones(MIN_COHORT, dtype=f64)
    norms[1:] = 0.0
    assert bounds_opposition(torch.ones(MIN_COHORT), norms)
    assert not bounds_opposition(torch.ones(MIN_COHORT), torch.zeros_like(norms))
    assert not bounds_opposition(torch.ones(MIN_COHORT - 1), norms[1:])


class OwnSums(all_methods()["fedavg"]):
    """A method with sums of its own, which have no mean."""

    name = "own-sums"

    def partial_sums(self, global_params, updates, weights):
        return {"total": super().partial_sums(global_params, updates, weights)["mean"]}

    def apply_sums(self, server, sums):
        return {**server.params, **sums["total"]}, server.state


def test_a_method_with_other_sums_than_the_mean_runs():
    task = small_task("linear", clients=24, size_sigma=0.0, samples=60)
    run = simulate(OwnSums(), task, 2)
    assert [log.skipped for log in run.logs] == [None, None]
    assert largest_difference(run.params, run.initial_params) > 0


def test_weights_that_do_not_sum_to_one_are_compared_alike():
    sent = {"w": torch.tensor([1.0, 2.0], dtype=f64)}
    models = {"w": torch.tensor([[2.0, 2.0], [1.0, 4.0]], dtype=f64)}
    for weights in (torch.tensor([0.5, 0.5], dtype=f64), torch.tensor([3.0, 3.0], dtype=f64)):
        mean = weighted_mean(models, weights)
        assert mean_change(sent, mean, weights)["w"].tolist() == pytest.approx([0.5, 1.0])
