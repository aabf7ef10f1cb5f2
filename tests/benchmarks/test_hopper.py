"""Hopper and HalfCheetah with another leg: sizes and masses, and Gymnasium's own environment where
the leg is its own.
"""

import importlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lab import Results
from benchmarks.lab.provenance import RESULTS
from benchmarks.lab.study import find
from equipoise.experiment.build import build_task
from equipoise.settings.experiment_config import ExperimentConfig

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'equipoise[mujoco]'")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes its warnings about Gymnasium's models into the working directory."""
    monkeypatch.chdir(tmp_path)


def test_every_agent_has_its_own_leg() -> None:
    hopper = importlib.import_module("benchmarks.hopper")
    thin, own, thick = (hopper.HopperWithLeg(u=u).model for u in (0.1, 0.5, 0.9))
    plain = importlib.import_module("gymnasium").make("Hopper-v5").unwrapped.model
    np.testing.assert_allclose(own.geom_size, plain.geom_size)
    np.testing.assert_allclose(own.body_mass, plain.body_mass)
    sizes = np.array([model.geom("leg_geom").size for model in (thin, own, thick)])
    np.testing.assert_allclose(sizes[:, 0], [0.032, 0.04, 0.048])
    np.testing.assert_array_equal(sizes[:, 1], [0.25] * 3)
    assert thin.body("leg").mass < own.body("leg").mass < thick.body("leg").mass


def test_every_half_cheetah_has_its_own_thigh() -> None:
    cheetah = importlib.import_module("benchmarks.half_cheetah")
    thin, own, thick = (cheetah.HalfCheetahWithThigh(u=u).model for u in (0.125, 0.5, 0.875))
    plain = importlib.import_module("gymnasium").make("HalfCheetah-v5").unwrapped.model
    np.testing.assert_allclose(own.geom_size, plain.geom_size)
    np.testing.assert_allclose(own.body_mass, plain.body_mass)
    sizes = np.array([model.geom("bthigh").size for model in (thin, own, thick)])
    np.testing.assert_allclose(sizes[:, 0], [0.031, 0.046, 0.061])
    assert thin.body("bthigh").mass < own.body("bthigh").mass < thick.body("bthigh").mass
    assert sum(thick.body_mass) == pytest.approx(sum(plain.body_mass))


def test_a_part_that_gymnasium_lacks_is_named() -> None:
    hopper = importlib.import_module("benchmarks.hopper")
    with pytest.raises(ValueError, match=r"no geom name=.fin. size=.0\.1"):
        hopper.changed_model("hopper.xml", 'name="fin" size="{}', 0.1, 0.2)


def test_an_own_leg_moves_as_in_gymnasium_to_the_bit() -> None:
    plain = importlib.import_module("gymnasium").make("Hopper-v5")
    own = importlib.import_module("benchmarks.hopper").HopperWithLeg()
    np.testing.assert_array_equal(own.reset(seed=3)[0], plain.reset(seed=3)[0])
    rng = np.random.default_rng(2)
    for _ in range(300):
        action = rng.uniform(-1, 1, 3)
        expected, found = plain.step(action), own.step(action)
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1:3] == expected[1:3]
        if expected[2]:
            break
    assert expected[2]


def test_the_study_declares_it() -> None:
    cells = {cell.name: cell for cell in find("deep_rl").cells(Results(RESULTS / "deep_rl"))}
    task = build_task(ExperimentConfig.from_options(cells["seed504-hopper-legs-dqnavg"].options))
    radii = [float(make().model.geom("leg_geom").size[0]) for make in task.env.factories]  # type: ignore[attr-defined]
    assert radii == pytest.approx([0.0325, 0.0375, 0.0425, 0.0475])
    assert task.env.max_episode_steps == 1000  # type: ignore[attr-defined]
