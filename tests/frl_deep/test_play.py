"""An agent of a finished run at play: the very episodes that were scored, as pictures."""

import shutil

import gymnasium
import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.environments import render
from equipoise.environments.classic_control import Acrobot, CartPole, Pendulum
from equipoise.environments.vec_env import PhysicsVecEnv
from equipoise.experiment.play import play
from equipoise.experiment.runner import run
from equipoise.settings.experiment_config import ExperimentConfig

Image = pytest.importorskip(
    "PIL.Image", reason="pictures need Pillow: pip install 'equipoise[data]'"
)
TINY = {
    "agents": 2,
    "parallel": 2,
    "width": 8,
    "capacity": 60,
    "learning_starts": 20,
    "epochs": 15,
    "batch_size": 8,
}
TASKS = {
    "cartpole": {"task": "cartpole", "differ": "length,goal"},
    "acrobot": {"task": "acrobot", "differ": "goal"},
    "pendulum": {"task": "pendulum", "differ": "goal,reversed,sensors"},
    "gym": {
        "task": "gym",
        "env_id": "CartPole-v1",
        "frames": 2,
        "normalise": True,
        "differ": "sensors",
    },
}


def finished(name, folder):
    summary = run(
        ExperimentConfig.from_options(
            {**TINY, **TASKS[name], "method": "dqn", "rounds": 2, "episodes": 2}
        ),
        folder,
    )
    return folder, summary.personal.return_


@pytest.mark.parametrize("name", TASKS)
def test_what_is_played_is_what_was_scored(name, tmp_path):
    folder, scored = finished(name, tmp_path / "run")
    returns = [play(folder, agent, number, None) for agent in range(2) for number in range(2)]
    assert np.mean(returns) == pytest.approx(scored)


@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_a_film_has_a_picture_of_each_step_and_moves(name, tmp_path, capsys):
    folder, _ = finished(name, tmp_path / "run")
    out = tmp_path / "films" / "out.gif"
    assert main(["play", str(folder), "--agent", "1", "--video", str(out)]) == 0
    assert "agent 1, episode 0: return" in capsys.readouterr().out
    with Image.open(out) as found:
        assert found.n_frames > 2
        first = np.asarray(found.convert("RGB")).copy()
        found.seek(found.n_frames - 1)
        assert (np.asarray(found.convert("RGB")) != first).any()


class Walk(gymnasium.Env):
    """Pays its place on a line; drawn as one bright pixel. ``mute`` cannot be drawn."""

    observation_space, action_space = (
        gymnasium.spaces.Box(-20, 20, (2,)),
        gymnasium.spaces.Discrete(2),
    )

    def __init__(self, mute=False, render_mode=None):
        if mute and render_mode:
            raise ValueError("no pencil")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.left = float(self.np_random.integers(-3, 4)), 9
        return self._seen(), {}

    def step(self, action):
        self.place, self.left = self.place + 2 * action - 1, self.left - 1
        return self._seen(), self.place, self.left == 0, False, {}

    def _seen(self):
        return np.array([self.place, self.left], np.float32)

    def render(self):
        shown = np.zeros((8, 41, 3), np.uint8)
        shown[4, 20 + int(self.place)] = 255
        return shown


OWN = {
    "task": "gym",
    "env_id": f"{__file__}:Walk",
    "frames": 2,
    "normalise": True,
    "differ": "sensors",
}


def test_a_film_shows_the_scored_episode_of_a_wrapped_environment(tmp_path):
    """Frames, usual sizes and senses are the agent's own when it is drawn, too."""
    run(
        ExperimentConfig.from_options({**TINY, **OWN, "method": "dqn", "rounds": 2, "episodes": 2}),
        tmp_path / "run",
    )
    assert play(tmp_path / "run", 1, 1, tmp_path / "out.gif") == play(tmp_path / "run", 1, 1, None)
    with Image.open(tmp_path / "out.gif") as found:
        assert found.size == (41, 8)


def test_an_environment_that_cannot_be_drawn_is_told_in_one_line(tmp_path, capsys):
    options = {
        **TINY,
        **OWN,
        "env_kwargs": '{"mute": true}',
        "method": "dqn",
        "rounds": 1,
        "episodes": 1,
    }
    run(ExperimentConfig.from_options(options), tmp_path / "run")
    capsys.readouterr()
    assert main(["play", str(tmp_path / "run"), "--video", str(tmp_path / "out.gif")]) == 2
    assert (
        capsys.readouterr().err.strip()
        == "equipoise: this environment cannot be drawn here: no pencil"
    )


@pytest.mark.parametrize("physics", [CartPole(), Acrobot(), Pendulum()], ids=lambda p: p.gym_id)
def test_pictures_show_where_things_are(physics):
    """Upright, the rod is above the middle; hanging, below it (the cart's pole never hangs)."""
    world = PhysicsVecEnv.from_traits(physics, np.array([0.5]))
    play = world.reset(torch.zeros(1, dtype=torch.int64), np.full((1, 1, physics.state_dim), 0.5))
    rows = {}
    for words, angle in (("up", np.pi if isinstance(physics, Acrobot) else 0.0), ("down", 0.0)):
        play.state[:] = 0.0
        play.state[..., 2 if isinstance(physics, CartPole) else 0] = angle
        if words == "down" and isinstance(physics, Pendulum):
            play.state[..., 0] = np.pi
        shown = np.asarray(render.render_frame(play))
        rows[words] = np.flatnonzero((shown == render.MOVING).all(-1).any(1)).mean()
    assert rows["up"] < render.HEIGHT * 0.6
    if not isinstance(physics, CartPole):
        assert rows["down"] > render.HEIGHT / 2 > rows["up"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("nowhere", "not a run folder"),
        ("{run} --agent 7", "it has 0 to 1"),
        ("{run} --episode -1", "episode is -1"),
        ("{run} --video x.avi", "must end in .gif or .mp4"),
    ],
)
def test_mistakes_are_told_in_one_line(options, words, tmp_path, capsys):
    folder, _ = finished("cartpole", tmp_path / "run")
    capsys.readouterr()
    assert main(["play", *options.format(run=folder).split()]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_an_mp4_needs_an_encoder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["play", str(tmp_path), "--video", "x.mp4"]) == 2
    assert "needs ffmpeg" in capsys.readouterr().err


def test_a_run_without_agents_has_nothing_to_play(tmp_path, capsys):
    assert (
        main(
            [
                *"run --task synthetic --clients 4 --rounds 1 --quiet --out".split(),
                str(tmp_path / "run"),
            ]
        )
        == 0
    )
    assert main(["play", str(tmp_path / "run")]) == 2
    assert "no deep agents" in capsys.readouterr().err
