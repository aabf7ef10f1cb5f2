"""The stacked double DQN: its gradient by hand and by autograd, its memory, one agent of the stack
alone.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.environments import dqn_agent
from equipoise.environments.classic_control import CartPole
from equipoise.environments.dqn_agent import AgentHParams, td_gradient, train
from equipoise.environments.q_network import EVERY_STEP, BatchedAdam, BlockSchedule, Net
from equipoise.environments.vec_env import PhysicsVecEnv, StepResult
from equipoise.rl.nn import adam
from helpers import largest_difference

SETTINGS = AgentHParams(2, 0.9, 40, 10, 50, 0.1, 0.1, 8)
NETS = [Net(4, 6, 2), Net(4, 6, 2, 3)]
F64 = torch.float64


def stack(net: Net, agents: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    models = [net.init(torch.rand(net.size, dtype=F64)) for _ in range(agents)]
    return net.pack({name: torch.stack([model[name] for model in models]) for name in net.shapes})


def batch(agents: int, rows: int, seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    values = torch.randn(agents, rows, 11, dtype=F64)
    values[..., -2] = (torch.rand(agents, rows) < 0.8).double()
    values[..., -1] = torch.randint(2, (agents, rows)).double()
    return values


def test_a_net_by_hand():
    """One input, one unit a layer: Q(x) = w3 relu(w2 relu(w1 x + b1) + b2) + b3."""
    net = Net(1, 1, 2)
    flat = torch.tensor([2.0, 1.0, 3.0, -1.0, 0.5, -1.0, 0.25, 10.0])
    assert list(net.shapes) == ["w1", "b1", "w2", "b2", "w3", "b3"]
    assert net.forward(net.views(flat), torch.tensor([[[1.0], [-3.0]]]))[0].tolist() == [
        [4.25, 2.0],
        [0.25, 10.0],
    ]


def test_the_td_target_by_hand():
    """y = R + future Q'(s', argmax Q(s', .)), no future after the end."""
    net = Net(1, 1, 2)
    own = torch.tensor(
        [1.0, 0.0, 1.0, 0.0, 1.0, 0.5, 0.0, 0.0]
    )  # Q(s) = (s, s/2) for s > 0: chooses action 0
    judge = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.5, 2.0, 0.0, 0.0])  # Q'(s) = (s/2, 2s)
    rows = torch.tensor(
        [[[1.0, 2.0, 0.3, 0.9, 0.0], [1.0, 2.0, 0.3, 0.0, 1.0], [1.0, 2.0, 9.0, 0.9, 0.0]]]
    )
    # y = 0.3 + 0.9 * 1 = 1.2, Q = 1: error -0.2; y = 0.3, Q = 0.5: error 0.2; y = 9.9: error -8.9
    flat = torch.empty_like(own)
    td_gradient(net, net.views(own), net.views(judge), rows, net.views(flat))
    slope = net.views(flat)
    assert slope["b3"][0].tolist() == pytest.approx([(-0.2 - 8.9) / 3, 0.2 / 3])
    assert slope["w3"][0, :, 0].tolist() == pytest.approx([(-0.2 - 8.9) / 3, 0.2 / 3])
    assert float(slope["b2"][0, 0]) == pytest.approx((-0.2 - 8.9) / 3 + 0.5 * 0.2 / 3)


@pytest.mark.parametrize("net", NETS, ids=["plain", "embedded"])
@pytest.mark.parametrize("body", [True, False])
def test_the_gradient_is_autograds(net, body):
    own, judge, rows = stack(net, 3), net.views(stack(net, 3, 2)), batch(3, 7)
    free = own.clone().requires_grad_()
    views = net.views(free)
    state, following = rows[..., :4], rows[..., 4:8]
    with torch.no_grad():
        ahead = net.forward(views, following).argmax(-1, keepdim=True)
        goal = rows[..., -3:-2] + rows[..., -2:-1] * net.forward(judge, following).gather(-1, ahead)
    q = net.forward(views, state).gather(-1, rows[..., -1:].long())
    (0.5 * (q - goal).square()).mean(1).sum().backward()
    slope = torch.empty_like(own)
    td_gradient(net, net.views(own), judge, rows, net.views(slope), body)
    found, expected = net.views(slope), net.views(free.grad)
    for name in net.shapes if body else net.blocks["head"]:
        assert largest_difference(found[name], expected[name]) < 1e-14


def test_an_embedding_is_an_input_of_its_own():
    net = NETS[1]
    views, x = net.views(stack(net, 2)), torch.randn(2, 5, 4, dtype=F64)
    whole = torch.cat([x, views["e"][:, None].expand(-1, 5, -1)], -1) @ torch.cat(
        [views["w1"], views["w0"]], 1
    )
    expected = torch.relu(whole + views["b1"][:, None])
    assert largest_difference(net.features(views, x)[0], expected) < 1e-14


def setup(agents: int = 4, net: Net = NETS[0], steps: int = 30):
    world = PhysicsVecEnv.from_traits(CartPole(), (np.arange(4) + 0.5) / 4)
    ids = torch.arange(agents)
    kept = {**dqn_agent.init_state(net, SETTINGS, agents, F64), "env": world.init_state(ids, 2, 0)}
    u = np.random.default_rng(3).random(
        (agents, steps, dqn_agent.noise_dim_per_step(net, SETTINGS, world))
    )
    return world, ids, kept, u


def rhythm(agents: int, head_steps: int = EVERY_STEP, moves=(True, True)) -> BlockSchedule:
    rate = torch.full((agents, 1), 0.01, dtype=F64)
    return BlockSchedule(rate, 0.5 * rate, head_steps, moves)


@pytest.mark.parametrize("net", NETS, ids=["plain", "embedded"])
def test_one_agent_of_the_stack_is_the_agent_alone(net):
    world, ids, kept, u = setup(net=net)
    start = stack(net, 4)
    together, after = train(world, net, SETTINGS, rhythm(4), ids, start, kept, u)

    def own(tree, k):
        return torch.utils._pytree.tree_map(lambda value: value[k : k + 1], tree)

    for k in range(4):
        params = net.pack(own(net.views(start), k))
        alone, left = train(
            world, net, SETTINGS, rhythm(1), ids[k : k + 1], params, own(kept, k), u[k : k + 1]
        )
        assert largest_difference(own(net.views(together), k), net.views(alone)) < 1e-12
        assert largest_difference(own(after, k), left) < 1e-12
    assert largest_difference(start, stack(net, 4)) == 0  # what was handed in did not change
    assert float(kept["replay"].abs().max()) == 0


def test_the_memory_holds_the_last_transitions():
    world, ids, kept, u = setup(steps=30)
    _, after = train(world, NETS[0], SETTINGS, rhythm(4), ids, stack(NETS[0], 4), kept, u)
    rows = after["replay"]
    assert (
        after["num_steps"].tolist() == [30] * 4
    )  # 60 transitions in 40 places: rows 0 to 19 are the newest
    assert rows[..., -1].unique().tolist() == [0, 1]
    physics = CartPole()
    units = np.array(physics.obs_scale)
    before, following = rows[..., :4].numpy() * units, rows[..., 4:8].numpy() * units
    moved, _, over = physics.step(before, rows[..., -1].numpy().astype(int), world.bodies)
    np.testing.assert_allclose(moved, following, atol=1e-6)
    np.testing.assert_allclose(rows[..., -2].numpy(), 0.9 * ~over)
    np.testing.assert_allclose(rows[..., -3], 0.1)  # a reward counts 1 - discount
    order = (np.arange(40) + 20) % 40  # oldest first
    goes_on = rows[:, order, -2].numpy().astype(bool)
    for copy in range(2):
        path_before, path_after = before[:, order][:, copy::2], following[:, order][:, copy::2]
        joined = goes_on[:, copy::2][:, :-1]
        np.testing.assert_array_equal(path_after[:, :-1][joined], path_before[:, 1:][joined])


def test_returns_of_three_steps_by_hand():
    """Each transition is s, a, r + 0.9 r' + 0.81 r'', the state after, and 0.9^3; shorter at an
    episode's end.
    """
    net, settings = (
        Net(1, 2, 2),
        replace(SETTINGS, num_envs=1, capacity=40, learning_starts=40, n_step=3),
    )
    kept = dqn_agent.init_state(net, settings, 1, F64)
    one = dqn_agent.Learner(net, settings, rhythm(1), stack(net, 1), kept, np.full((1, 9, 10), 0.5))
    # reward, terminated, truncated: an episode of four steps that ends, one of two that is cut,
    # then three more
    story = [
        (1, 0, 0),
        (2, 0, 0),
        (4, 0, 0),
        (8, 1, 0),
        (16, 0, 0),
        (32, 0, 1),
        (64, 0, 0),
        (128, 0, 0),
        (256, 0, 0),
    ]

    def seen(time):
        return np.full((1, 1, 1), float(time), np.float32)

    for step, (reward, terminated, truncated) in enumerate(story):
        flags = [np.array([[bool(flag)]]) for flag in (terminated, truncated)]
        moved = StepResult(seen(step + 100), np.array([[float(reward)]]), *flags)
        one.add_to_buffer(step, seen(step), np.array([[step % 2]]), moved)
    rows = one.state_dict()["replay"][0, :9]
    sums = [1 + 1.8 + 0.81 * 4, 2 + 3.6 + 0.81 * 8, 4 + 7.2, 8, 16 + 28.8, 32]
    sums += [64 + 0.9 * 128 + 0.81 * 256, 128 + 0.9 * 256, 256]  # the last two still grow
    np.testing.assert_allclose(rows[:, 2], 0.1 * np.array(sums))
    np.testing.assert_allclose(rows[:, 3], [0.729, 0, 0, 0, 0.81, 0.9, 0.729, 0.81, 0.9])
    assert rows[:, 0].tolist() == list(range(9))
    assert rows[:, 1].tolist() == [102, 103, 103, 103, 105, 105, 108, 108, 108]
    assert rows[:, 4].tolist() == [step % 2 for step in range(9)]


@pytest.mark.parametrize("returns", [1, 4])
def test_returns_go_on_across_calls_and_round_the_memory(returns):
    """Many calls are one call to the bit, also in the middle of an episode and of the memory's
    round.
    """
    net, settings = NETS[0], replace(SETTINGS, n_step=returns)
    world, ids, kept, u = setup(steps=50)
    whole, after = train(world, net, settings, rhythm(4), ids, stack(net, 4), kept, u)
    params = stack(net, 4)
    for part in np.array_split(u, 7, axis=1):
        params, kept = train(world, net, settings, rhythm(4), ids, params, kept, part)
    assert torch.equal(whole, params)
    assert largest_difference(after, kept) == 0


def test_what_is_handed_over_is_the_mean_of_the_last_nets():
    net = NETS[0]
    world, ids, kept, u = setup(steps=30)
    found, after = train(
        world, net, replace(SETTINGS, weight_avg_steps=3), rhythm(4), ids, stack(net, 4), kept, u
    )
    each = [
        train(world, net, SETTINGS, rhythm(4), ids, stack(net, 4), kept, u[:, :n])[0]
        for n in (28, 29, 30)
    ]
    assert largest_difference(found, sum(each) / 3) < 1e-15
    assert (
        largest_difference(
            after, train(world, net, SETTINGS, rhythm(4), ids, stack(net, 4), kept, u)[1]
        )
        == 0
    )
    one, _ = train(
        world,
        net,
        replace(SETTINGS, weight_avg_steps=9),
        rhythm(4),
        ids,
        stack(net, 4),
        kept,
        u[:, :1],
    )
    assert torch.equal(
        one, train(world, net, SETTINGS, rhythm(4), ids, stack(net, 4), kept, u[:, :1])[0]
    )


def test_agents_learn_only_after_their_own_warm_up():
    world, ids, kept, u = setup(steps=3)
    kept["num_steps"] = torch.tensor([0, 0, 5, 5])  # two were here before
    start = stack(NETS[0], 4)
    params, after = train(world, NETS[0], SETTINGS, rhythm(4), ids, start, kept, u)
    first, end = NETS[0].views(start), NETS[0].views(params)
    assert [torch.equal(end["w2"][k], first["w2"][k]) for k in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert after["updates"].tolist() == [[0, 0], [0, 0], [3, 3], [3, 3]]
    for name in NETS[0].shapes:
        assert float(after["adam"]["m"][name][:2].abs().max()) == 0
        assert torch.equal(after["target"][name][:2], first[name][:2])


def test_the_rhythm_of_two_timescales():
    """K = 2: two steps of the head, one of the body; the other block does not move, its rate is its
    own.
    """
    net, s = NETS[0], SETTINGS
    head, body = (False, True), (True, False)
    assert [rhythm(1, 2).trained_blocks(step) for step in range(4)] == [head, head, body, head]
    world, ids, kept, u = setup(steps=9)
    kept["num_steps"] = torch.full((4,), 5)
    start = stack(net, 4)
    _, after = train(world, net, s, rhythm(4, 2), ids, start, kept, u)
    assert after["updates"].tolist() == [[3, 6]] * 4
    frozen, _ = train(world, net, s, rhythm(4, 2, (False, True)), ids, start, kept, u)
    border = 4 * net.backbone_size
    assert torch.equal(frozen[:border], start[:border])
    assert not torch.equal(frozen[border:], start[border:])
    # Adam's first step is the rate times the sign: the body's third step is its first
    one, _ = train(world, net, s, rhythm(4, 2), ids, start, kept, u[:, :3])
    moved = (one - start)[:border].abs()
    assert float(moved.max()) == pytest.approx(0.005, rel=1e-4)


def test_adam_of_a_stack_is_adam_of_each():
    torch.manual_seed(0)
    params, slope = torch.randn(3, 5, dtype=F64), torch.randn(3, 5, dtype=F64)
    moments = {"m": torch.rand(3, 5, dtype=F64), "v": torch.rand(3, 5, dtype=F64)}
    counts = torch.tensor([[1], [7], [100]])
    together, _ = adam(params, slope, moments, counts, 0.1)
    for k in range(3):
        own = {name: value[k] for name, value in moments.items()}
        assert (
            largest_difference(together[k], adam(params[k], slope[k], own, counts[k, 0], 0.1)[0])
            < 1e-15
        )


@pytest.mark.parametrize("counts", [[3, 3, 3], [0, 7, 100]], ids=["alike", "apart"])
@pytest.mark.parametrize("only", [None, [True, False, True]], ids=["all", "some"])
def test_adam_where_the_nets_lie_is_adam_of_each(counts, only):
    """Body and head have moved equally often, or not; the body's rate is half the head's."""
    net = NETS[0]
    params, slope, m = stack(net, 3), stack(net, 3, 1), stack(net, 3, 2)
    kept = {
        "adam": {"m": net.views(m), "v": net.views(m.square())},
        "updates": torch.tensor([[count, count + 2] for count in counts]),
    }
    moved = params.clone()
    one = BatchedAdam(net, rhythm(3), moved, slope, kept)
    one.step((True, False), None if only is None else np.array(only))
    found, after = net.views(moved), one.state_dict()
    for name in net.shapes:
        for k in range(3):
            whole = {
                key: net.views(value)[name][k]
                for key, value in (("p", params), ("g", slope), ("m", m))
            }
            if name in net.blocks["head"] or (only and not only[k]):
                expected, moments = whole["p"], {"m": whole["m"], "v": whole["m"].square()}
            else:
                moments = {"m": whole["m"], "v": whole["m"].square()}
                expected, moments = adam(
                    whole["p"], whole["g"], moments, torch.tensor(counts[k] + 1), 0.005
                )
            assert largest_difference(found[name][k], expected) < 1e-15
            assert (
                largest_difference({key: after["adam"][key][name][k] for key in "mv"}, moments)
                < 1e-15
            )
    steps = [1 if only is None or only[k] else 0 for k in range(3)]
    assert after["updates"].tolist() == [
        [count + step, count + 2] for count, step in zip(counts, steps, strict=True)
    ]


def test_epsilon_falls_over_environment_steps():
    s, net = SETTINGS, NETS[0]
    kept = {**dqn_agent.init_state(net, s, 3, F64)}
    kept["num_steps"] = torch.tensor(
        [0, 10, 1000]
    )  # 2,000 copies: 0, 20,000 and 2,000,000 of 50,000 steps
    u = np.random.default_rng(0).random((3, 1, 2000 * 2 + 8))
    one = dqn_agent.Learner(
        net, replace(s, num_envs=2000, eps_decay_steps=50000), rhythm(3), stack(net, 3), kept, u
    )
    seen = np.zeros((3, 2000, 4), np.float32)
    greedy = (
        net.forward(net.views(stack(net, 3)), torch.from_numpy(seen).double()).argmax(-1).numpy()
    )
    chosen = (one.act(0, seen) != greedy).mean(1)  # half of the random actions are the greedy one
    assert chosen.tolist() == pytest.approx([0.5, 0.5 * (1 - 0.9 * 0.4), 0.05], abs=0.05)
