"""Gymnasium's Hopper-v5 with a leg of another thickness, for the study `deep_rl`.

Mass and inertia follow from the leg's size, because MuJoCo computes them from the model's XML.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

LEG = 'name="leg_geom" size="{} 0.25"'  # radius and half the length of the capsule
OWN_RADIUS = 0.04
RADIUS_RANGE = 0.02  # between the thinnest and the thickest leg


def changed_model(asset: str, geom: str, own_radius: float, radius: float) -> str:
    """Return the XML of one of Gymnasium's bodies with another radius of one of its parts.

    Args:
        asset: File among Gymnasium's models.
        geom: The part's name and size in that file, with a place for the radius.
        own_radius: The radius there, in metres.
        radius: The new radius, in metres.

    Returns:
        The XML.

    Raises:
        ValueError: If this version of Gymnasium has no such part.
    """
    folder = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
    xml = (folder / asset).read_text()
    own = geom.format(own_radius)
    if xml.count(own) != 1:
        raise ValueError(
            f"{asset} of Gymnasium {gymnasium.__version__} has no geom {own}: use Gymnasium 1.x"
        )
    return xml.replace(own, geom.format(f"{radius:.6g}"))


class HopperWithLeg(HopperEnv):
    """Hopper-v5 whose leg differs by agent.

    Args:
        u: A number in (0, 1); the radius is 0.04 + 0.02 (u - 1/2), and 1/2 is Gymnasium's own.
        options: Passed on to `HopperEnv`.
    """

    def __init__(self, u: float = 0.5, **options: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:  # MuJoCo reads a model from a file
            path = Path(folder) / "hopper.xml"
            radius = OWN_RADIUS + RADIUS_RANGE * (u - 0.5)
            path.write_text(changed_model("hopper.xml", LEG, OWN_RADIUS, radius))
            super().__init__(xml_file=str(path), **options)
