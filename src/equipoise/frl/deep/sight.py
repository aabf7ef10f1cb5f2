"""What nets are given of what an environment shows: numbered states, vectors and images, the newest ones together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.core.errors import UsageError
from equipoise.frl.deep.traits import Floats, Seen

BYTE = 255.0
TRIED = 1000  # random steps in an environment, from which its numbers' usual sizes are taken


@dataclass(frozen=True)
class Sight:
    """How one observation becomes ``[..., size]`` numbers, of which ``frames`` newest ones are seen at once."""

    size: int
    frames: int = 1
    kinds: int = 0
    """States that are numbered from ``first`` on: each number has a place of its own."""
    first: int = 0
    sides: tuple[int, ...] = ()
    """Of an image: height, width and, if it has colours, channels."""

    @classmethod
    def of(cls, space: Any, frames: int = 1) -> Sight:
        from gymnasium import spaces

        if isinstance(space, spaces.Discrete):
            return cls(int(space.n), frames, int(space.n), int(space.start))
        if isinstance(space, spaces.Box) and len(space.shape) == 1:
            return cls(int(space.shape[0]), frames)
        if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3):
            return cls(math.prod(space.shape), frames, sides=space.shape)
        raise UsageError(
            f"the environment shows {space}: only a vector, the number of a state or an image of bytes can be seen here"
        )

    @property
    def observations(self) -> int:
        return self.frames * self.size

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width of all that is seen at once, if it is an image."""
        if not self.sides:
            return None
        height, width, channels = (*self.sides, 1)[:3]
        return channels * self.frames, height, width

    def numbers(self, shown: npt.NDArray[Any]) -> Seen:
        """``[..., size]``; an image in shares of the brightest, channel after channel."""
        if self.kinds:
            shown = np.eye(self.kinds)[shown - self.first]
        elif self.sides:
            lead = shown.shape[: shown.ndim - len(self.sides)]
            rows = shown if len(self.sides) == 2 else np.moveaxis(shown, -1, -3)
            shown = rows.reshape(*lead, self.size) / BYTE
        return shown.astype(np.float32)

    def begin(self, seen: Seen) -> Seen:
        """At the start of an episode there is nothing older: the first is seen in all places."""
        return np.concatenate([seen] * self.frames, -1)

    def go_on(self, held: Seen, seen: Seen) -> Seen:
        """The oldest goes, the newest comes."""
        return np.concatenate([held[..., self.size :], seen], -1)


def usual_sizes(make: Callable[..., Any], sight: Sight, seed: int) -> tuple[Floats, Floats]:
    """Mean and spread of the numbers that an environment shows while it is acted in at random."""
    env = make()
    env.action_space.seed(seed)
    shown, _ = env.reset(seed=seed)
    found = [shown]
    for _ in range(TRIED):
        shown, _, terminated, truncated, _ = env.step(env.action_space.sample())
        found.append(shown)
        if terminated or truncated:
            found.append(env.reset()[0])
    env.close()
    numbers = sight.numbers(np.stack(found)).astype(np.float64)
    spread = numbers.std(0)
    return numbers.mean(0), np.where(spread > 0, spread, 1.0)
