"""Deep agents through the contract, run folder and command line."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from equipoise.cli import main
from equipoise.core import LocalHParams, LocalTrainRequest, RngContext
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import run
from equipoise.methods import find_method
from equipoise.records.rounds import Bytes
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from helpers import cut_and_resumed, largest_difference, simulate, timeless

METHODS = ("dqn", "dqnavg", "perdqnavg", "pfeddqn-rep")
TINY = {
    **{
        "task": "cartpole",
        "agents": 3,
        "parallel": 2,
        "width": 8,
        "capacity": 60,
        "learning_starts": 20,
    },
    **{"eps_decay_steps": 100, "episodes": 2, "epochs": 15, "batch_size": 8, "lr": 0.01, "seed": 3},
}


def built(method, dtype=torch.float64, **options):
    settings = ExperimentConfig.from_options({**TINY, "method": method, **options})
    task = build_task(settings)
    task.dtype = dtype
    return settings, task


def done(method, rounds=4, executor="stacked", participation=1.0, **options):
    settings, task = built(method, **options)
    return simulate(settings.method, task, rounds, executor, participation, seed=settings.run.seed)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_loop_equals_stacked(name, participation):
    both = [done(name, 4, executor, participation) for executor in ("loop", "stacked")]
    assert largest_difference(both[0].state_dict(), both[1].state_dict()) < 1e-10
    for name in ("trained", "received", "global_", "bytes"):
        assert getattr(both[0].logs[-1], name) == getattr(both[1].logs[-1], name)


def test_rates_fall_and_the_bodys_falls_faster():
    rates = []

    class Fitting:
        def __init__(self, round):
            self.round, self.id, self.start, self.state = round, torch.tensor(0), {}, {}
            self.hparams = LocalHParams(torch.tensor(1), torch.tensor(0.1, dtype=torch.float64))

        def fit(self, start, hparams, aux):
            rates.append((float(hparams.lr), float(aux["body_lr"])))
            return start

    method = find_method("pfeddqn-rep")(body_rate=0.5, slow_after=10)
    for round in (1, 11, 71):
        method.train(Fitting(round))
    assert rates == [
        pytest.approx((0.1, 0.05)),
        pytest.approx((0.1 / 2 ** (2 / 3), 0.025)),
        pytest.approx((0.1 / 4, 0.05 / 8)),
    ]


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_run(name):
    one, two, other = done(name, 2), done(name, 2), done(name, 2, seed=4)
    assert largest_difference(one.state_dict(), two.state_dict()) == 0
    assert largest_difference(one.store.local_params, other.store.local_params) > 0


def test_what_travels():
    net = built("dqn")[1].net
    whole, body = 8 * net.size, 8 * net.backbone_size
    travels = {name: done(name, 1).logs[0].bytes for name in METHODS}
    assert travels["dqn"] == Bytes(0, 0)
    assert travels["dqnavg"] == Bytes(3 * whole, 3 * whole)
    assert travels["pfeddqn-rep"] == Bytes(3 * body, 3 * body)
    embedded = built("perdqnavg")[1].net
    assert embedded.embedding == 2  # ceil(log2 3)
    assert travels["perdqnavg"].up == 3 * 8 * (embedded.size - 2)


@pytest.mark.parametrize(("ours", "plain"), [("dqn", "local"), ("dqnavg", "fedavg")])
def test_the_plain_methods_are_the_same_to_the_bit(ours, plain):
    assert largest_difference(done(ours, slow_after=0).state_dict(), done(plain).state_dict()) == 0


def test_at_one_rate_pfeddqn_rep_is_fedper():
    assert (
        largest_difference(
            done("pfeddqn-rep", slow_after=0).state_dict(), done("fedper").state_dict()
        )
        == 0
    )
    assert (
        largest_difference(
            done("pfeddqn-rep", slow_after=0, body_rate=0.5).state_dict(),
            done("fedper").state_dict(),
        )
        > 0
    )


def test_with_one_agent_everything_is_one():
    names = ("dqn", "dqnavg", "pfeddqn-rep")
    alone = [done(name, agents=1, slow_after=0).store.local_params for name in names]
    assert largest_difference(alone[0], alone[1]) == largest_difference(alone[0], alone[2]) == 0


def test_bodies_are_averaged_and_heads_stay():
    end = done("pfeddqn-rep", 2)
    local, names = end.store.local_params, end.task.info.blocks
    for name in names["backbone"]:
        assert largest_difference(local[name].mean(0), end.params[name]) < 1e-15
    for name in names["head"]:
        assert float((local[name][0] - local[name][1]).abs().max()) > 0
        assert torch.equal(end.params[name], end.initial_params[name])  # the server never saw one


@pytest.mark.parametrize(
    ("policy", "name", "options"),
    [("full", "dqnavg", ""), ("backbone", "pfeddqn-rep", "head_steps=2"), ("none", "dqn", "")],
)
def test_fedpolicy_with_one_part_always_is_that_method_to_the_bit(policy, name, options):
    parts = {"parts": "full,backbone,none"} if policy == "none" else {}
    driven = done("fedpolicy", policy=policy, base="dqnavg", base_options=options, **parts)
    plain = done(name, **({"head_steps": 2} if options else {}))
    assert largest_difference(driven.store.local_params, plain.store.local_params) == 0
    assert largest_difference(driven.store.data_state, plain.store.data_state) == 0
    assert driven.logs[-1].trained == plain.logs[-1].trained


@pytest.mark.parametrize("policy", ["gate", "trained", "dqn", "random"])
def test_fedpolicy_decides_for_agents(policy):
    end = done("fedpolicy", 10, policy=policy, base="dqnavg", val_episodes=2)
    parts = {part for log in end.logs for part in log.logged["part"]}
    assert parts <= {0, 1, 2, 3}
    if policy == "random":  # the others may find that the whole model is best
        assert len(parts) > 1
    assert end.logs[-1].dropped == []


def test_absent_agents_stand_still():
    end = done("dqnavg", 6, participation=0.5)
    rounds = end.store.counts["rounds"]
    assert rounds.min() < rounds.max()
    assert (end.store.data_state["num_steps"] == 15 * rounds).all()


def test_agents_may_take_different_numbers_of_steps():
    _, task = built("dqnavg")
    ids, one = torch.arange(3), task.init_params(0)
    start = {name: value.expand(3, *value.shape) for name, value in one.items()}

    def go(steps):
        fit = LocalTrainRequest(
            start,
            torch.tensor(steps),
            torch.full((3,), 0.01, dtype=torch.float64),
            trainable=tuple(one),
        )
        return task.fit_stack(
            ids, fit, task.init_data_state(ids), RngContext(0, 1, task.info.training)
        )

    mixed, few, many = go([12, 20, 12]), go([12] * 3), go([20] * 3)
    for k, same in enumerate((few, many, few)):
        assert largest_difference(mixed[0]["w2"][k], same[0]["w2"][k]) < 1e-12
    assert mixed[2]["num_steps"].tolist() == [12, 20, 12]


def test_a_return_as_merit():
    _, task = built("dqnavg")
    merit, loss = task.utility_and_loss({"return": torch.tensor([0.0, 125.0, 500.0])})
    assert (merit.tolist(), loss.tolist()) == ([0.0, 0.25, 1.0], [0.0] * 3)


def test_the_server_judges_a_model_in_every_environment():
    _, task = built("dqnavg")
    one = task.init_params(1)
    everywhere = {name: value.expand(3, *value.shape) for name, value in one.items()}
    own = task.evaluate_stack(torch.arange(3), everywhere, "test")["return"]
    server = task.evaluate_server({name: value[None] for name, value in one.items()}, "test")[
        "return"
    ]
    assert float(server) == pytest.approx(float(own.mean()))


@pytest.mark.parametrize("name", ["perdqnavg", "pfeddqn-rep"])
def test_resume_after_an_interruption_to_the_bit(name, tmp_path):
    settings = ExperimentConfig.from_options(
        {**TINY, "method": name, "rounds": 8, "participation": 0.7}
    )
    whole = run(settings, tmp_path / "whole")
    resumed = cut_and_resumed(settings, tmp_path / "cut", 5)
    assert timeless(resumed) == timeless(whole)
    files = [
        (tmp_path / way / "models" / "personal.safetensors").read_bytes()
        for way in ("whole", "cut")
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize("task", ["cartpole", "acrobot"])
def test_the_command_line(task, tmp_path, capsys):
    options = (
        "--agents 2 --parallel 2 --episodes 1 --epochs 20 --learning-starts 10 --width 8 "
        "--rounds 2 --quiet"
    )
    out = tmp_path / "run"
    assert (
        main(
            ["run", "--method", "pfeddqn-rep", "--task", task, *options.split(), "--out", str(out)]
        )
        == 0
    )
    summary = json.loads((out / "summary.json").read_text())
    assert summary["global"] is None
    low, high = (0, 500) if task == "cartpole" else (-500, 0)
    assert low <= summary["trained"]["return"] <= high
    assert "trained_return" in (out / "clients.csv").read_text()
    if (out / "report.html").exists():
        assert "return" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agents": 0}, "agents is 0"),
        ({"parallel": 0}, "parallel is 0"),
        ({"discount": 1.0}, "discount is 1.0"),
        ({"eps_final": 1.5}, "eps_final"),
        ({"target_tau": 1.5}, "target_tau"),
        ({"capacity": 10}, "capacity is 10"),
        ({"heterogeneity": "0.1,0.2"}, "2 numbers for 3 agents"),
        ({"heterogeneity": "0.1,0.2,1.5"}, "strictly between 0 and 1"),
        ({"heterogeneity": "a,b,c"}, "separated by commas"),
        ({"head_steps": -1}, "head_steps"),
        ({"body_rate": 0.0}, "body_rate"),
        ({"model": "embedded"}, "plain net"),
    ],
)
def test_bad_options_are_refused_before_any_work(options, words):
    with pytest.raises(UsageError, match=words):
        built("pfeddqn-rep", **options)


def test_wrong_pairs_are_refused(tmp_path, capsys):
    for command, words in (
        ("--method pfeddqn-rep --task synthetic", "trains deep agents"),
        ("--method fedprox --task cartpole", "learn by temporal differences"),
        ("--method perdqnavg --task cartpole --model mlp", "needs a net with an embedding"),
        ("--method perdqnavg --task cartpole --head-steps 2", "head_steps must be 0"),
        ("--method fedpolicy --policy trained --base dqnavg --task cartpole", "has none"),
        ("--method page --task cartpole --val-episodes 2", "learn by temporal differences"),
        ("--method joint --task cartpole --val-episodes 2", "learn by temporal differences"),
        ("--method fedala --task cartpole", "learn by temporal differences"),
        (
            "--method dqn --task cartpole --finetune --val-episodes 2",
            "finetune tunes on rows of data",
        ),
    ):
        assert main(["run", *command.split(), "--out", str(tmp_path / "x"), "--quiet"]) == 2
        err = capsys.readouterr().err
        assert words in err
        assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", METHODS)
def test_the_page_shows_every_option_with_its_default(name):
    lines = (Path(__file__).parents[2] / "docs" / "methods" / f"{name}.md").read_text().splitlines()
    rows = [
        [cell.strip() for cell in line.split("|")[1:3]] for line in lines if line.startswith("| `")
    ]
    shown = {option.strip("`"): float(default) for option, default in rows}
    assert shown == {field.name: field.default for field in fields(find_method(name))}


@pytest.mark.slow
def test_a_stack_of_agents_learns_to_balance():
    """Two agents, poles of different lengths: random play holds for about 20 steps, and learning
    does much better.
    """
    options = {
        "agents": 2,
        "parallel": 4,
        "width": 32,
        "capacity": 5000,
        "learning_starts": 500,
        "eps_decay_steps": 3000,
    }
    more = {"episodes": 10, "epochs": 250, "batch_size": 32, "lr": 2e-3, "target_tau": 0.02}
    settings, task = built("dqn", torch.float32, **options, **more)
    end = simulate(settings.method, task, 8, seed=3)
    before = end.task.evaluate_server(
        {name: value[None] for name, value in end.initial_params.items()}, "test"
    )["return"]
    assert float(before) < 60
    assert end.logs[-1].trained["return"] > 150


def test_embeddings_start_at_each_agents_own_draw_and_stay_its_own():
    end = done("perdqnavg", 1)
    starts = end.store.local_params["e"]
    assert len({tuple(row.tolist()) for row in starts}) == 3
    assert (
        float((starts[0] - starts[1]).abs().max()) > 0.05
    )  # one round does not move them so far apart
    later = done("perdqnavg", 2).store.local_params["e"]
    assert float((later - starts).abs().max()) < 0.5  # they are not drawn again


def test_a_net_of_nan_is_the_worst_policy():
    _, task = built("dqn")
    one = task.init_params(0)
    stack = {name: value.expand(3, *value.shape).clone() for name, value in one.items()}
    stack["b3"][1, 0] = torch.nan
    found = task.evaluate_stack(torch.arange(3), stack, "test")["return"]
    assert found.isfinite().tolist() == [True, False, True]
    assert found[1] == -torch.inf
