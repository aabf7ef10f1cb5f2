"""The trained policy: features by hand, when it decides, its file, and how it was trained."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from equipoise.cli import main
from equipoise.experiment import evaluation
from equipoise.methods.fedpolicy import learned, simulator, training
from equipoise.methods.fedpolicy.evidence import ROW_VARIANCE
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.methods.fedpolicy.network import (
    ADVANTAGE_SCALE,
    FEATURES,
    MAX_FEATURE,
    Observation,
    PolicyNetwork,
    client_features,
    init_network,
    load_network,
    save_network,
)
from equipoise.methods.fedpolicy.policies import hold_rounds
from equipoise.methods.fedpolicy.state import BlockSets
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task

FOUR = BlockSets()


def observed(accuracy: list[list[float]], rows: int = 40, left: float = 0.5) -> Observation:
    scores = torch.tensor(accuracy, dtype=torch.float64)
    count = len(scores)
    return Observation(
        smoothed=scores,
        accuracy=scores,
        previous=scores,
        is_known=torch.ones(count, dtype=torch.bool),
        installs=torch.ones(count, 2, dtype=torch.bool),
        num_rows=torch.full((count,), 4 * rows),
        num_val_rows=torch.full((count,), rows),
        time_left=torch.tensor(left),
        gate_part=torch.zeros(count, dtype=torch.int64),
        has_left=torch.zeros(count, dtype=torch.bool),
        alignment=torch.full((count,), 0.3),
    )


def feature(features: Tensor, name: str) -> list[float]:
    values: list[float] = features[..., FEATURES.index(name)].tolist()
    return values


def test_advantages_by_hand() -> None:
    """The best accuracies are 0.8 and 0.8; full is 0.2 above the own model, and 0.4 below it."""
    found = client_features(observed([[0.8, 0.6, 0.6, 0.6], [0.4, 0.8, 0.8, 0.8]]))
    first, second = 0.2 / 0.8, -0.4 / 0.8
    mean = (first + second) / 2
    assert feature(found, "mean advantage of full") == pytest.approx([ADVANTAGE_SCALE * mean] * 2)
    noise = ROW_VARIANCE / 40 / 0.8**2
    tau = ((first - second) / 2) ** 2 - noise
    own = ADVANTAGE_SCALE * (first - mean) * tau / (tau + noise)
    assert feature(found, "own advantage of full") == pytest.approx([own, -own])
    assert feature(found, "own advantage of head") == [0.0, 0.0]  # alike: nothing is known of one
    assert feature(found, "share left x own advantage of full") == pytest.approx(
        [own / 2, -own / 2]
    )
    assert feature(found, "one") == [1.0, 1.0]
    assert feature(found, "log size") == [0.0, 0.0]


def test_features_have_no_units_and_no_order() -> None:
    """Half the accuracy everywhere, on four times the rows, is the same to the policy."""
    seen = observed([[0.8, 0.7, 0.6, 0.5], [0.4, 0.3, 0.6, 0.7], [0.2, 0.9, 0.1, 0.3]])
    whole = client_features(seen)
    half = client_features(
        seen._replace(
            smoothed=seen.smoothed / 2,
            accuracy=seen.accuracy / 2,
            previous=seen.previous / 2,
            num_rows=4 * seen.num_rows,
            num_val_rows=4 * seen.num_val_rows,
        )
    )
    assert largest_difference(whole, half) < 1e-12
    order = torch.tensor([2, 0, 1])
    turned = Observation(*(value[order] if value.dim() else value for value in seen))
    assert largest_difference(client_features(turned), whole[order]) < 1e-12


def test_features_stay_bounded_whatever_is_reported() -> None:
    for accuracy in ([[0.0] * 4] * 3, [[1.0] * 4] * 3, [[1.0, 0.0, 0.0, 0.0]] * 3):
        seen = observed(accuracy, rows=1)
        for known in (torch.zeros(3, dtype=torch.bool), seen.is_known):
            found = client_features(seen._replace(is_known=known))
            assert bool((found.abs() <= MAX_FEATURE).all())


def test_a_client_that_never_probed_does_not_count() -> None:
    seen = observed([[0.8, 0.6, 0.6, 0.6], [0.4, 0.8, 0.8, 0.8], [0.0, 0.0, 0.0, 0.0]])
    known = seen._replace(is_known=torch.tensor([True, True, False]))
    found = client_features(known)
    two = client_features(Observation(*(v[:2] if v.dim() else v for v in seen)))
    mean = "mean advantage of full"
    assert feature(found, mean)[0] == pytest.approx(feature(two, mean)[0])
    assert feature(found, "own advantage of full")[2] == 0.0


def test_federations_side_by_side_are_those_alone() -> None:
    one = observed([[0.8, 0.6, 0.6, 0.6], [0.4, 0.8, 0.8, 0.8]])
    other = observed([[0.1, 0.2, 0.3, 0.4], [0.9, 0.8, 0.7, 0.6]], left=0.25)
    both = Observation(*(torch.stack(pair) for pair in zip(one, other, strict=True)))
    alone = torch.stack([client_features(one), client_features(other)])
    assert largest_difference(client_features(both), alone) == 0


# --- in a run -------------------------------------------------------------------------------------


def network_of(part: int) -> PolicyNetwork:
    """Return a network that always prefers one part."""
    network = init_network(torch.Generator().manual_seed(0))
    linear = torch.zeros_like(network.linear)
    linear[0, part] = 1.0
    return network._replace(linear=linear)


@pytest.mark.parametrize("part", range(4))
def test_a_policy_that_prefers_one_part_takes_it_from_its_first_decision_on(
    part: int, tmp_path: Path
) -> None:
    """24 rounds: a part is held for two, and everybody takes the whole model before."""
    path = tmp_path / "policy.json"
    save_network(network_of(part), path, {})
    done = simulate(FedPolicy(policy="trained", policy_file=str(path)), small_task(), 24)
    assert hold_rounds(24) == 2
    assert [set(log.logged["part"]) for log in done.logs] == [{0}] * 2 + [{part}] * 22
    probes = [log.logged["probes"] for log in done.logs]
    assert probes == [0, 6] * 11 + [0, 0]


def test_always_full_is_fedavg(tmp_path: Path) -> None:
    """Over the same base; the sums are weighed per block, and so may differ in the last bit."""
    path = tmp_path / "policy.json"
    save_network(network_of(0), path, {})
    trained = FedPolicy(policy="trained", policy_file=str(path), base="fedavg")
    ours = simulate(trained, small_task(), 6)
    theirs = simulate(FedPolicy(policy="full"), small_task(), 6)
    assert largest_difference(ours.params, theirs.params) < 1e-12


def test_absent_clients_decide_when_they_come_back() -> None:
    task = small_task()
    schedule = RoundLoopConfig(24, 0, 0.5, "stacked", 24, True)
    run = FederatedSimulation(FedPolicy(policy="trained"), task, task.info.training, schedule)
    for round in range(1, 25):
        run.run_round()
        policy_state = run.server_state["policy_state"]
        assert bool((policy_state["decision_round"] <= round).all())
        assert bool((policy_state["probe_round"] <= round).all())
    assert bool((policy_state["decision_round"] > 1).all())


def test_gains_relative_to_holders_of_full_by_hand() -> None:
    own = torch.tensor([0.5, 0.6, 0.9, 0.4], dtype=torch.float64)
    before = torch.tensor([0.4, 0.5, 0.6, 0.5], dtype=torch.float64)
    policy_state = {
        "scores": own[:, None].expand(4, 4),
        "previous_scores": before[:, None].expand(4, 4),
        "part": torch.tensor([0, 0, 1, 3]),
    }
    gains = learned.relative_gains(policy_state, torch.arange(4))
    assert gains.tolist() == pytest.approx([0.0, 0.0, 0.2, -0.2])
    alone = learned.relative_gains(policy_state, torch.tensor([2, 3]))
    assert alone.tolist() == pytest.approx([0.2, -0.2])  # less their mean, 0.1


def test_the_q_network_learns_from_whole_holds() -> None:
    done = simulate(FedPolicy(policy="dqn"), small_task(), 12)
    agent = done.server_state["policy_state"]["agent"]
    assert int(agent["num_stored"]) == 6 * 10  # decisions in rounds 2 to 12; each closes one
    assert int(agent["num_updates"]) > 0


# --- its file -------------------------------------------------------------------------------------


def test_a_saved_policy_is_read_back(tmp_path: Path) -> None:
    network = init_network(torch.Generator().manual_seed(4))
    save_network(network, tmp_path / "a.json", {"seed": 4})
    found = load_network(str(tmp_path / "a.json"))
    assert all(largest_difference(a, b) < 1e-4 for a, b in zip(found, network, strict=True))


def test_the_shipped_policy_is_small_and_says_how_it_was_made() -> None:
    assert load_network().linear.shape == (len(FEATURES), 4)
    path = Path(learned.__file__).with_name("trained.json")
    assert path.stat().st_size < 20_000
    about = json.loads(path.read_text())["about"]
    assert about["command"].startswith("equipoise train-policy")
    gain = about["new_federations"]
    assert gain["difference"] == pytest.approx(gain["trained"] - gain["gate"], abs=0.011)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"features": []}', '{"weights": 3}', "\0", '{"features": 1, "linear": 2}'],
)
def test_damaged_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="write one with equipoise train-policy"):
        load_network(str(path))


# --- training -------------------------------------------------------------------------------------


def federations(count: int = 2, clients: int = 3, seed: int = 0) -> simulator.Federations:
    return simulator.draw_federations(count, clients, torch.Generator().manual_seed(seed))


def test_the_gradient_by_hand_is_that_of_autograd() -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(2, 3, *shape, dtype=torch.float64, generator=generator)

    model = simulator.Model(draw(5, 4), draw(4), draw(4, 7), draw(7))
    x, y = draw(6, 5), torch.randint(7, (2, 3, 6), generator=generator)
    lr = torch.rand(2, 3, dtype=torch.float64, generator=generator)
    leaves = simulator.Model(*(value.clone().requires_grad_() for value in model))
    logits = simulator.outputs(leaves, x)[1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 2), y.flatten(), reduction="sum") / 6
    gradients = torch.autograd.grad(loss, list(leaves))
    moved = simulator.sgd_step(model, x, y, lr)
    for new, old, gradient in zip(moved, model, gradients, strict=True):
        step = lr.reshape(2, 3, *[1] * (old.dim() - 2)) * gradient
        assert largest_difference(new, old - step) < 1e-12


def test_aggregation_is_that_of_the_method() -> None:
    """Weights per block, damping and momentum, beside `BlockSets` on a model with these blocks."""
    task = small_task(clients=3)
    ages = torch.tensor([[0, 0], [1, 6], [3, 9]])
    data = federations(1)._replace(
        size=torch.tensor([[10.0, 20.0, 30.0]]), momentum=torch.tensor([0.5])
    )
    fresh = 0.5 ** ages.double()
    weights = FOUR.block_weights(task, (data.size[0] / data.size.sum()).double(), fresh)
    received = simulator.Model(*(torch.rand(1, 1, *s) for s in ((2, 2), (2,), (2, 2), (2,))))
    velocity = simulator.Model(*(torch.rand_like(value) for value in received))
    own = simulator.Model(*(torch.rand(1, 3, *v.shape[2:]) for v in received))
    found, steps = simulator.aggregate(received, velocity, own, data, ages[None])
    for block, name, number in ((0, "backbone", 0), (1, "head", 2)):
        weight = weights[task.info.blocks[name][0]].reshape(-1, 1, 1)
        move = min(1.0, float(fresh[:, block].mean()) / 0.25)
        before = received[number][0, 0]
        step = 0.5 * velocity[number][0, 0] + (weight * own[number][0]).sum(0) - before
        assert largest_difference(steps[number][0, 0], step) < 1e-6
        assert largest_difference(found[number][0, 0], before + move * step) < 1e-6


def test_a_block_that_nobody_installed_stays() -> None:
    data = federations(1)
    received = simulator.Model(*(torch.rand(1, 1, *s) for s in ((2, 2), (2,), (2, 2), (2,))))
    own = simulator.Model(*(torch.rand(1, 3, *v.shape[2:]) for v in received))
    ages = torch.tensor([[[0, 1], [1, 2], [3, 1]]])
    found, _ = simulator.aggregate(received, received, own, data, ages)
    assert torch.equal(found.w2, received.w2)
    assert not torch.equal(found.w1, received.w1)


def test_fine_tuning_stays_out_where_validation_rows_do_not_ask_for_it() -> None:
    data = federations(2)
    draws = torch.rand(3, 2, 3, simulator.BATCH_ROWS)
    shapes = ((simulator.INPUTS, simulator.HIDDEN), (simulator.HIDDEN, simulator.CLASSES))
    zeros = [torch.zeros(2, 3, *shape) for shape in shapes]
    own = simulator.Model(zeros[0], zeros[0][:, :, 0], zeros[1], zeros[1][:, :, 0])
    same = simulator.finetune(own, data._replace(lr=torch.zeros(2)), draws)
    assert all(torch.equal(a, b) for a, b in zip(same, own, strict=True))
    assert simulator.TUNING_MIN_ERRORS == evaluation.MIN_GAIN_ERRORS  # one rule in both places


def test_replicas_with_the_same_choices_are_the_same_federation() -> None:
    data = simulator.repeat(federations(), 2)

    def always_full(features: Tensor, over: float) -> Tensor:
        return torch.zeros(features.shape[:-1], dtype=torch.int64)

    with torch.no_grad():
        played = simulator.play(data, 12, 2, always_full, torch.Generator().manual_seed(3))
    pairs = played.personal.unflatten(0, (2, 2))
    assert torch.equal(pairs[:, 0], pairs[:, 1])
    assert played.features.shape == (11, 4, 3, len(FEATURES))
    assert set(played.actions.flatten().tolist()) == {0}


def test_the_baseline_is_the_mean_over_replicas() -> None:
    personal = torch.rand(2 * training.REPLICAS, 3)
    nothing = torch.zeros(0)
    tuned, global_ = torch.rand_like(personal), torch.rand_like(personal)
    episode = simulator.Episode(personal, tuned, global_, nothing, nothing)
    found = training.advantages(episode).unflatten(0, (2, training.REPLICAS))
    assert largest_difference(found.mean(1), torch.zeros(2, 3)) < 1e-5


def test_the_gate_gains_nothing_over_itself_on_new_federations() -> None:
    options = training.TrainingOptions(clients=4, rounds=12)
    gain = training.gain_over_gate(init_network(torch.Generator().manual_seed(5)), options)
    assert gain.trained == gain.gate
    assert (gain.difference, gain.standard_error, gain.changed) == (0.0, 0.0, 0.0)
    full = training.gain_over_gate(network_of(0), options)
    assert full.changed > 0
    assert full.difference == pytest.approx(full.trained - full.gate, abs=0.011)
    assert full.standard_error > 0


def test_training_is_one_command_with_a_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--batches 2 --federations 2 --clients 4 --rounds 12 --seed 3 --quiet"
    for name in ("a", "b"):
        out = str(tmp_path / f"{name}.json")
        assert main(["train-policy", "--out", out, *options.split()]) == 0
    first = (tmp_path / "a.json").read_text()
    assert first == (tmp_path / "b.json").read_text()
    options_of_file = training.TrainingOptions(2, 2, 4, 12, seed=3)
    gain = training.gain_over_gate(load_network(str(tmp_path / "a.json")), options_of_file)
    assert json.loads(first)["about"]["new_federations"] == gain._asdict()
    start = init_network(torch.Generator().manual_seed(3))
    assert largest_difference(load_network(str(tmp_path / "a.json")).linear, start.linear) > 1e-3
    run = "run --method fedpolicy --policy trained --task synthetic --model mlp --quiet"
    size = "--rounds 2 --clients 4"
    file = ["--policy-file", str(tmp_path / "a.json"), "--out", str(tmp_path / "run")]
    assert main([*run.split(), *size.split(), *file]) == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--batches 0", "batches"),
        ("--rounds 0", "rounds"),
        ("--seed x", "seed"),
        ("--out /no/such/folder/x.json", "/no/such/folder"),
    ],
)
def test_bad_options_of_the_training_end_before_any_work(
    options: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--out", str(tmp_path / "x.json"), *options.split()]
    assert main(["train-policy", *given]) == 2
    assert word in capsys.readouterr().err
