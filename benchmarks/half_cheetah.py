"""Gymnasium's HalfCheetah-v5 with a back thigh of another thickness, for the study `deep_rl`.

The model's total mass is fixed in its XML, so that a thicker thigh makes the other parts lighter.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

from benchmarks.hopper import changed_model

THIGH = 'name="bthigh" pos=".1 0 -.13" size="{} .145"'  # radius and half the length of the capsule
OWN_RADIUS = 0.046
RADIUS_RANGE = 0.04  # between the thinnest and the thickest thigh


class HalfCheetahWithThigh(HalfCheetahEnv):
    """HalfCheetah-v5 whose back thigh differs by agent.

    Args:
        u: A number in (0, 1); the radius is 0.046 + 0.04 (u - 1/2), and 1/2 is Gymnasium's own.
        options: Passed on to `HalfCheetahEnv`.
    """

    def __init__(self, u: float = 0.5, **options: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:  # MuJoCo reads a model from a file
            path = Path(folder) / "half_cheetah.xml"
            radius = OWN_RADIUS + RADIUS_RANGE * (u - 0.5)
            path.write_text(changed_model("half_cheetah.xml", THIGH, OWN_RADIUS, radius))
            super().__init__(xml_file=str(path), **options)
