"""Robust rules against closed forms, and methods under them."""

import json
import math
from functools import cache

import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.core import ClientUpdate, Server
from equipoise.experiment.build import build_task
from equipoise.methods import all_methods
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.aggregation_guard import norm_outliers, update_norms
from equipoise.simulation.attacks import ATTACKS, hostile_clients, parse_attack, with_attack
from equipoise.simulation.executors import Loop, Stacked
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.poisoning import poison
from equipoise.utils.errors import UsageError
from equipoise.wrappers import robust_aggregation
from equipoise.wrappers.robust_aggregation import (
    MIN_TRUST,
    RULES,
    RobustAggregation,
    client_norms,
    with_robust_aggregation,
)
from helpers import largest_difference, simulate, small_task

f64 = torch.float64


def stack(*rows):
    """Two parameters, so that a rule must look across names."""
    points = torch.tensor(rows, dtype=f64)
    return {"a": points[:, :1], "b": points[:, 1:]}


def joined(tree):
    return torch.cat([tree["a"].flatten(), tree["b"].flatten()]).tolist()


def test_lengths_and_distances():
    points = stack([3.0, 4.0], [0.0, 0.0], [3.0, 0.0])
    assert robust_aggregation.client_norms(points).tolist() == [5, 0, 3]
    assert robust_aggregation.squared_distances(
        robust_aggregation.gram_matrix(points)
    ).tolist() == [
        [0, 25, 16],
        [25, 0, 9],
        [16, 9, 0],
    ]


def test_median_and_trimmed_mean_by_hand():
    points = stack([1.0, 10.0], [2.0, -5.0], [3.0, 0.0], [1000.0, 1.0])
    assert joined(robust_aggregation.coordinate_median(points)) == [2.5, 0.5]
    assert joined(
        robust_aggregation.coordinate_median(stack([1.0, 1.0], [2.0, 9.0], [7.0, 2.0]))
    ) == [2, 2]
    assert joined(robust_aggregation.trimmed_mean(points, 0.25)) == [2.5, 0.5]
    assert joined(robust_aggregation.trimmed_mean(points, 0.0)) == [1006 / 4, 6 / 4]
    five = stack(*([float(k), 0.0] for k in (0, 1, 2, 3, 100)))
    assert joined(robust_aggregation.trimmed_mean(five, 0.2)) == [2, 0]
    assert joined(robust_aggregation.trimmed_mean(stack([4.0, 2.0]), 0.4)) == [4, 2]


def test_the_geometric_median_of_a_triangle_is_fermats_point():
    """Of an equilateral triangle the centre; with an angle of 120 degrees or more, that corner."""
    height = math.sqrt(3) / 2
    weights = robust_aggregation.geometric_median_weights(
        robust_aggregation.gram_matrix(stack([0.0, 0.0], [1.0, 0.0], [0.5, height]))
    )
    assert torch.allclose(weights, torch.full((3,), 1 / 3, dtype=f64))
    flat = stack([-1.0, 0.0], [1.0, 0.0], [0.0, 0.1])
    assert (
        robust_aggregation.geometric_median_weights(robust_aggregation.gram_matrix(flat))[2] > 0.999
    )
    # On a line it is the median: one far point does not move it.
    line = stack([0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [1e6, 0.0])
    weights = robust_aggregation.geometric_median_weights(robust_aggregation.gram_matrix(line))
    assert abs(float(weights @ line["a"].flatten()) - 2) < 0.3
    # Who does not count is as if it were not there.
    counted = robust_aggregation.geometric_median_weights(
        robust_aggregation.gram_matrix(line), torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0], dtype=f64)
    )
    assert abs(float(counted @ line["a"].flatten()) - 1) < 0.01


def test_krum_by_hand():
    """Scores are sums over the K - f - 2 nearest: with five clients and one
    liar, the two nearest.
    """
    points = stack([0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [50.0, 50.0])
    assert robust_aggregation.krum_scores(points, 1)[:4].tolist() == [1 + 4, 1 + 4, 4 + 5, 4 + 9]
    assert robust_aggregation.krum(points, 1).tolist() == [True, False, False, False, False]
    assert robust_aggregation.multi_krum(points, 1).tolist() == [True, True, True, True, False]


def test_clipping_shortens_what_is_too_long_and_leaves_the_rest_to_the_bit():
    points = stack([3.0, 4.0], [0.3, 0.4])
    short = robust_aggregation.clip_norms(points, 1.0)
    assert joined({name: value[:1] for name, value in short.items()}) == pytest.approx([0.6, 0.8])
    assert all(torch.equal(short[name][1], points[name][1]) for name in points)
    assert robust_aggregation.clip_norms(points, 5.0) is points
    around = robust_aggregation.clip_norms(
        stack([3.0, 0.0]), 1.0, {"a": torch.tensor([1.0]), "b": torch.tensor([0.0])}
    )
    assert joined(around) == [2, 0]


def test_centred_clipping_by_hand():
    """One step from 0 with tau = 1: the mean of clipped points; the next step starts there."""
    points = stack([2.0, 0.0], [0.0, 0.0], [-1000.0, 0.0])
    assert joined(robust_aggregation.centered_clipping(points, 1.0, steps=1)) == pytest.approx(
        [0.0, 0.0]
    )
    three = stack([2.0, 0.0], [2.0, 0.0], [-1000.0, 0.0])
    assert joined(robust_aggregation.centered_clipping(three, 1.0, steps=1)) == pytest.approx(
        [1 / 3, 0.0]
    )
    assert joined(robust_aggregation.centered_clipping(three, 1.0, steps=2)) == pytest.approx(
        [2 / 3, 0.0]
    )
    alone = robust_aggregation.centered_clipping(stack([0.3, 0.0]), 1.0, steps=3)
    assert joined(alone) == pytest.approx([0.3, 0.0])


def update_trust(stack, gain, trust, decay=robust_aggregation.TRUST_DECAY):
    observed = robust_aggregation.observe_updates(stack, gain, trust)
    return robust_aggregation.mix_trust(trust, observed, decay)


def test_trust_falls_for_who_points_against_the_others_and_recovers():
    torch.manual_seed(0)
    honest = torch.randn(9, 4, dtype=f64) * 0.3 + 1
    points = torch.cat([honest, -10 * honest[:1]])
    belief = torch.full((10,), 0.7, dtype=f64)
    for _ in range(4):
        belief = update_trust({"w": points}, None, belief)
    assert float(belief[9]) == pytest.approx(0.7**5)
    assert float(belief[:9].min()) > 0.5
    for _ in range(6):
        belief = update_trust({"w": torch.cat([honest, honest[:1] + 0.1])}, None, belief)
    assert float(belief[9]) > 0.5
    belief = update_trust(
        {"w": torch.cat([honest, honest[:1]])}, None, torch.ones(10, dtype=f64)
    )  # twins
    assert belief[[0, 9]].tolist() == [0.7, 0.7]
    assert float(belief[1:9].min()) > 0.8


def test_trust_by_hand_of_what_the_servers_data_say():
    """Alike in all else, belief is 1; it falls from no gain on, to none at a loss of three times
    the usual size.
    """
    across = [0.2, -0.2, 0.25, -0.25, 0.1, -0.1, 0.15, -0.15]
    points = torch.tensor([[1.0, y] for y in across], dtype=f64)
    gain = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.5, -1.5, -9.0, -9.0], dtype=f64)
    belief = update_trust({"w": points}, gain, torch.ones(8, dtype=f64), decay=0.0)
    assert belief.tolist() == pytest.approx([1.0] * 4 + [0.5] * 2 + [0.0] * 2)
    assert update_trust(
        {"w": points}, None, torch.ones(8, dtype=f64), decay=0.5
    ).tolist() == pytest.approx([1.0] * 8)


def test_whom_nobody_believed_does_not_move_the_centre():
    """Six of ten lie alike: as long as they were not believed before, it is they who point against
    the others.
    """
    torch.manual_seed(0)
    honest, lie = 1 + 0.1 * torch.randn(4, 3, dtype=f64), -1 + 0.1 * torch.randn(6, 3, dtype=f64)
    before = torch.tensor([1.0] * 4 + [0.01] * 6, dtype=f64)
    belief = update_trust({"w": torch.cat([honest, lie])}, None, before)
    assert belief[:4].tolist() == pytest.approx([1.0] * 4)
    assert float(belief[4:].max()) < 0.01


def test_a_small_step_along_a_change_is_scored_on_the_servers_data():
    """Against the gradient the loss falls, along it it rises by as much; no change, however short,
    is no gain.
    """
    task = small_task("linear", clients=6)
    method = with_robust_aggregation(all_methods()["fedavg"](), "trust")
    params = task.init_params(0)
    trained = simulate(all_methods()["fedavg"](), task, 3).params
    way = {name: trained[name] - params[name] for name in params}
    factors = torch.tensor([1.0, 7.0, -1.0, 0.0], dtype=f64)
    changes = {name: factors.view(-1, *[1] * value.dim()) * value for name, value in way.items()}
    gain = method._probe_gain(Server(task, task.info.training, params, {}, 0, 1, 1), changes)
    assert float(gain[0]) > 0
    assert gain[1].tolist() == pytest.approx(gain[0].tolist())
    assert gain[2].tolist() == pytest.approx(-gain[0].tolist(), rel=0.3)
    assert float(gain[3]) == 0


def test_a_client_weighs_at_most_twice_the_median_times_its_belief():
    weights, belief = (
        torch.tensor([0.1, 0.1, 0.1, 0.7], dtype=f64),
        torch.tensor([1.0, 1.0, 0.25, 1.0], dtype=f64),
    )
    assert robust_aggregation.cap_weights_by_trust(weights, belief).tolist() == pytest.approx(
        [0.1 / 0.45, 0.1 / 0.45, 0.05 / 0.45, 0.2 / 0.45]
    )
    assert torch.equal(
        robust_aggregation.cap_weights_by_trust(weights, torch.zeros(4, dtype=f64)), weights
    )  # nobody is believed
    equal = torch.full((4,), 0.25, dtype=f64)
    assert torch.equal(
        robust_aggregation.cap_weights_by_trust(equal, torch.ones(4, dtype=f64)), equal
    )
    parts = torch.tensor(
        [[0.0, 0.5], [0.0, 0.5], [0.4, 0.0], [0.6, 0.0]], dtype=f64
    )  # of each client, two numbers
    halves = robust_aggregation.cap_weights_by_trust(
        parts, torch.tensor([1.0, 0.25, -0.1, 0.0], dtype=f64)
    )
    assert halves[:, 0].tolist() == [
        0.0,
        0.0,
        0.4,
        0.6,
    ]  # none of the two who weigh here is believed
    assert halves[:, 1].tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])


@pytest.mark.parametrize("attack", ["labels:0.3", "flip:0.3"])
def test_trust_finds_liars_among_clients_that_differ(attack):
    """After some rounds most of the honest are believed and hardly a liar is."""
    settings = ExperimentConfig.from_options(
        {"clients": 30, "samples": 200, "epochs": 1, "seed": 2, "attack": attack}
    )
    method, schedule = (
        with_robust_aggregation(all_methods()["fedavg"](), "trust"),
        RoundLoopConfig(12, 2, 1.0, "stacked", 12, False),
    )
    simulation = FederatedSimulation(
        method, build_task(settings), settings.training, schedule, with_attack(Stacked, attack)
    )
    for _ in range(12):
        simulation.run_round()
    trust = simulation.server_state["trust"]
    lying = torch.isin(torch.arange(30), hostile_clients(2, 30, 0.3))
    assert float((trust[lying] < MIN_TRUST).double().mean()) > 0.8
    assert float((trust[~lying] >= MIN_TRUST).double().mean()) > 0.6


@pytest.mark.parametrize(
    "name", ["median", "trimmed", "geometric", "centred", "multikrum", "trust", "adaptive"]
)
def test_a_rule_withstands_a_far_point(name):
    """Nine points near (1, 1) and one at a million: what is left is near (1, 1)."""
    torch.manual_seed(1)
    method = with_robust_aggregation(all_methods()["fedavg"](), name)
    task = small_task("linear", clients=10)
    simulation = FederatedSimulation(
        method, task, task.info.training, RoundLoopConfig(1, 0, 1.0, "stacked", 1, True)
    )
    server_params = simulation.params
    near = {
        n: torch.randn(10, *v.shape, dtype=v.dtype) * 0.01 + v + 1 for n, v in server_params.items()
    }
    for value in near.values():
        value[3] = 1e6
    server = Server(
        task, task.info.training, server_params, method.init_server(task, server_params), 0, 1, 1
    )
    ids = torch.arange(10)
    for _ in range(3):  # trust takes rounds
        weights, server.state = method.aggregation_weights(server, ids, ClientUpdate(near))
        params, server.state = method.aggregate(server, ids, ClientUpdate(near), weights)
    for n, value in params.items():
        assert float((value - server_params[n] - 1).abs().max()) < 1.1


def test_each_rule_is_named_with_its_number():
    fedavg = all_methods()["fedavg"]()
    assert with_robust_aggregation(fedavg, "") is fedavg
    assert with_robust_aggregation(fedavg, "trimmed:0.1") == RobustAggregation(
        fedavg, "trimmed", 0.1
    )
    for text in (
        "trimed",
        "trimmed:0.5",
        "trimmed:x",
        "median:0.2",
        "bound:0",
        "krum:-1",
        "trust:1",
    ):
        with pytest.raises(UsageError, match="robust"):
            with_robust_aggregation(fedavg, text)


@pytest.mark.parametrize("rule", RULES)
def test_executors_agree_and_runs_resume_under_a_rule(rule, tmp_path):
    method, task = with_robust_aggregation(all_methods()["fedavg"](), rule), small_task("mlp")
    one, other = simulate(method, task, 2, "loop"), simulate(method, task, 2, "stacked")
    assert largest_difference(one.params, other.params) < 1e-9


def test_many_copies_do_not_draw_the_centre_to_themselves():
    """Of ten updates three hostile ones are alike, exactly or nearly; honest ones lie apart."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.zeros(400, dtype=torch.float64)
    mean[0] = 1.0
    honest = mean + torch.randn(70, 400, generator=generator, dtype=torch.float64) / 8
    trust = torch.full((100,), 0.4, dtype=torch.float64)
    for spread in (0.0, 0.1):
        noise = torch.randn(30, 400, generator=generator, dtype=torch.float64) / 20
        lies = 7 * (-mean + spread * noise)
        stack = {"w": torch.cat([honest, lies])}
        gain = stack["w"][:, 0] / client_norms(stack) / 10
        observed = robust_aggregation.observe_updates(stack, gain, trust)
        assert float(observed[70:].max()) == 0
        assert float(observed[:70].min()) > MIN_TRUST


def test_a_rule_leaves_the_memory_of_those_it_left_out_as_it_was():
    """SCAFFOLD's c stays the mean of the c_i of those that counted."""
    task = small_task("linear", clients=8, size_sigma=0.0)
    method = with_robust_aggregation(all_methods()["scaffold"](), "multikrum:0.3")
    run = simulate(method, task, 3)
    assert all(log.logged["kept"] == 6 for log in run.logs)
    total = {name: c.sum(0) / 8 for name, c in run.store.state["base"]["c"].items()}
    assert largest_difference(total, run.server_state["base"]["c"]) < 1e-14


def test_unsound_combinations_are_refused_with_the_reason():
    task = small_task("mlp")
    methods = all_methods()
    refused = [
        ("local", "median", "upload no model"),
        ("scaffold", "adaptive", "memory of every upload"),
        ("page", "median", "learn from every upload"),
    ]
    for name, rule, why in refused:
        with pytest.raises(UsageError, match=why):
            with_robust_aggregation(methods[name](), rule).check(task, task.info.training)
    for name, rule in (
        ("scaffold", "trimmed"),
        ("scaffold", "trust"),
        ("feddyn", "multikrum"),
        ("page", "multikrum"),
        ("fedpolicy", "trust"),
        ("fedper", "median"),
    ):
        with_robust_aggregation(methods[name](), rule).check(task, task.info.training)
        simulate(with_robust_aggregation(methods[name](), rule), task, 2)


@pytest.mark.parametrize("name", ["fedavg", "fedpolicy", "fedala"])
def test_one_that_flips_its_change_tenfold_is_left_out_or_counts_less_by_default(name):
    """Also where clients start from models of their own, as soon as its own change is as long as
    others'. Of FedPolicy, these are rounds of its first part, in which all get the whole model.
    """
    task = small_task("mlp", clients=12, size_sigma=0.0)
    schedule = RoundLoopConfig(48, 0, 1.0, "stacked", 1, True)
    simulation = FederatedSimulation(
        all_methods()[name](), task, task.info.training, schedule, with_attack(Stacked, "flip:0.05")
    )
    liar = int(hostile_clients(0, 12, 0.05)[0])
    for record in [simulation.run_round() for _ in range(3)][1:]:
        assert record.dropped == [liar] or liar in record.shrunk


@pytest.mark.parametrize("name", ["fedavg", "autopilot", "fedpolicy", "scaffold"])
def test_without_attackers_nobody_is_left_out(name):
    """The default protection does not touch honest runs: equal to the bit with and without it."""
    task = small_task("mlp")
    run = simulate(all_methods()[name](), task, 4)
    assert all(not log.dropped for log in run.logs)


def test_changes_that_are_much_too_long_are_named():
    before = {"w": torch.zeros(3)}
    after = {"w": torch.ones(10, 3)}
    after["w"][4] = 100.0
    everybody = torch.ones(10, dtype=torch.bool)
    assert norm_outliers(update_norms(before, after, 10), lambda: torch.ones(10), everybody) == {
        4: "its change is 100 times as long as nearly all others'"
    }
    after["w"][4] = 4.9
    assert norm_outliers(update_norms(before, after, 10), lambda: torch.ones(10), everybody) == {}
    after["w"][4] = 3e38
    assert list(
        norm_outliers(update_norms(before, after, 10), lambda: torch.ones(10), everybody)
    ) == [4]
    assert (
        norm_outliers(
            update_norms(before, {"w": after["w"][:4]}, 4), lambda: torch.ones(4), everybody[:4]
        )
        == {}
    )  # too few to tell
    assert (
        norm_outliers(
            update_norms(before, {"w": torch.zeros(10, 3)}, 10), lambda: torch.ones(10), everybody
        )
        == {}
    )


# --- attacks --------------------------------------------------------------------------------------


def test_who_lies_is_drawn_by_the_seed():
    one = hostile_clients(0, 100, 0.1)
    assert len(one) == 10
    assert torch.equal(one, hostile_clients(0, 100, 0.1))
    assert not torch.equal(one, hostile_clients(1, 100, 0.1))
    assert len(hostile_clients(0, 20, 0.01)) == 1


@pytest.mark.parametrize("text", ["flip", "flip:0", "flip:1", "flip:x", "nothing:0.1"])
def test_a_wrong_attack_is_refused(text):
    with pytest.raises(UsageError, match="attack"):
        parse_attack(text)


@cache
def uploads(executor, attack):
    task = small_task("mlp")
    method = all_methods()["autopilot"]()
    seen = []
    make = with_attack(executor, attack)

    def watched(*about):
        inner = make(*about)
        run = inner.run_clients
        inner.run_clients = lambda *args: seen.append(run(*args)) or seen[-1]
        return inner

    simulation = FederatedSimulation(
        method, task, task.info.training, RoundLoopConfig(1, 0, 1.0, "stacked", 1, True), watched
    )
    start = simulation.params
    simulation.run_round()
    return start, seen[0].stack.update


@pytest.mark.parametrize("name", ATTACKS)
def test_liars_send_what_the_attack_says_on_every_executor(name):
    start, honest = uploads(Stacked, "")
    _, lied = uploads(Stacked, f"{name}:0.2")
    _, looped = uploads(Loop, f"{name}:0.2")
    assert largest_difference(lied, looped) < 1e-9
    liar = int(hostile_clients(0, 6, 0.2)[0])
    others = [k for k in range(6) if k != liar]
    for key, value in lied.params.items():
        assert torch.equal(value[others], honest.params[key][others])
        change, true = value[liar] - start[key], honest.params[key][liar] - start[key]
        if name in ("flip", "scaled"):
            assert torch.allclose(change, (-10 if name == "flip" else 10) * true)
        elif name == "constant":
            assert torch.allclose(change, torch.ones_like(change))
        elif name == "little":
            rest = honest.params[key][others] - start[key]
            assert torch.allclose(change, rest.mean(0) - 1.5 * rest.std(0, correction=0))
    if name == "metrics":
        assert float(lied.metrics["second_half_sign"][liar]) == 1.0
        assert largest_difference(lied.params, honest.params) == 0


def test_the_command_line_runs_rules_and_attacks(tmp_path, capsys):
    small = "--clients 8 --samples 40 --rounds 2 --epochs 1 --quiet".split()
    command = ["run", *small, "--attack", "flip:0.25", "--robust", "multikrum:0.3"]
    assert main([*command, "--out", str(tmp_path / "one")]) == 0
    assert main(["run", *small, "--robust", "trimed:0.2", "--out", str(tmp_path / "two")]) == 2
    assert "did you mean 'trimmed'" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("how", ["labels", "backdoor"])
def test_liars_train_on_false_rows_and_everybody_is_tested_on_true_ones(how):
    task = small_task("mlp")
    liars = np.array([1, 4])
    false = poison(task, how, liars)
    for client in range(6):
        for name in ("train", "test"):
            true, told = (data.split(np.array([client]), name) for data in (task.data, false.data))
            rows = slice(int(true.start[0]), int(true.start[0] + true.size[0]))
            here = slice(int(told.start[0]), int(told.start[0] + told.size[0]))
            if client not in liars or name == "test":
                assert torch.equal(true.x[rows], told.x[here])
                assert torch.equal(true.y[rows], told.y[here])
            elif how == "labels":
                assert torch.equal(told.y[here], 3 - true.y[rows])
            else:
                assert torch.equal(
                    told.x[here][::2, -3:], torch.full_like(told.x[here][::2, -3:], 3.0)
                )
                assert not told.y[here][::2].any()
                assert torch.equal(told.y[here][1::2], true.y[rows][1::2])


def test_a_backdoor_is_scored_and_succeeds_when_everybody_learns_it(tmp_path):
    small = "--task synthetic --clients 10 --samples 100 --rounds 10 --epochs 2 --quiet".split()
    rates = {}
    for attack in ("backdoor:0.01", "backdoor:0.9"):
        out = tmp_path / attack
        assert main(["run", *small, "--attack", attack, "--out", str(out)]) == 0
        rates[attack] = json.loads((out / "summary.json").read_text())["backdoor"]
    assert rates["backdoor:0.9"] > max(0.6, rates["backdoor:0.01"])


def test_trust_does_without_the_servers_data_where_agents_learn_by_playing(tmp_path):
    command = "run --task two-state --method fedsynq --rounds 2 --quiet --robust trust".split()
    assert main([*command, "--out", str(tmp_path / "x")]) == 0


def test_a_task_without_rows_refuses_false_rows(tmp_path, capsys):
    command = "run --task two-state --method fedsynq --rounds 2 --quiet --attack labels:0.2".split()
    assert main([*command, "--out", str(tmp_path / "x")]) == 2
    assert "no rows to falsify" in capsys.readouterr().err


def test_from_python_a_rule_is_put_around_a_method(tmp_path):
    import equipoise as eq

    small = {"rounds": 2, "clients": 6, "samples": 40}
    run = eq.run(tmp_path / "one", method=eq.robust("scaffold", rule="trimmed", share=0.2), **small)
    assert run.config["robust"] == "trimmed:0.2"
    with pytest.raises(UsageError, match="memory of every upload"):
        eq.run(tmp_path / "two", method=eq.robust("scaffold", rule="adaptive"), **small)


def test_patience_does_not_go_with_noise():
    with pytest.raises(UsageError, match="patience is not offered with dp_noise"):
        ExperimentConfig.from_options({"patience": 3, "dp_clip": 1.0, "dp_noise": 1.0})


def test_a_client_that_trains_longer_or_more_gently_is_no_liar():
    """One hospital with a hundred times the rows moves much further; one with a hundredth of the
    rate moves less.
    """
    long, paths, everybody = (
        torch.ones(10).double(),
        torch.ones(10).double(),
        torch.ones(10, dtype=torch.bool),
    )
    long[0], paths[0] = 20.0, 100.0
    long[1], paths[1] = 1.0, 0.01
    assert norm_outliers(long, lambda: paths, everybody) == {}
    paths[:2] = 1.0
    assert list(norm_outliers(long, lambda: paths, everybody)) == [0]
