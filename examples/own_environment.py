"""Your own environment, a version for each agent: heaters that keep rooms at a temperature.

python examples/own_environment.py [FOLDER] [ROUNDS], or with these options on the command line:
equipoise run --task gym --env-id examples/own_environment.py:Heater --agents 2 \\
    --env-kwargs '[{"wanted": 19}, {}]'
"""

import sys

import gymnasium
import numpy as np
import numpy.typing as npt

import equipoise as eq

Seen = npt.NDArray[np.float32]


class Heater(gymnasium.Env[Seen, np.int64]):
    """A room that cools towards 10 degrees; action 1 heats.

    Every step costs the distance from what is wanted.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, wanted: float = 21.0) -> None:
        self.wanted, self.degrees, self.steps = wanted, 15.0, 0

    def reset(
        self, *, seed: int | None = None, options: object = None
    ) -> tuple[Seen, dict[str, object]]:
        super().reset(seed=seed)
        self.degrees, self.steps = float(self.np_random.uniform(12.0, 28.0)), 0
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[Seen, float, bool, bool, dict[str, object]]:
        self.degrees += 0.1 * (10.0 - self.degrees) + (2.0 if action == 1 else 0.0)
        self.steps += 1
        return self._seen(), -abs(self.degrees - self.wanted), False, self.steps >= 50, {}

    def _seen(self) -> Seen:  # about 1 in size, for nets learn best from that
        return np.array([(self.degrees - 20.0) / 5.0], np.float32)

    def save_state(
        self,
    ) -> list[float]:  # these two are optional: with them a resumed run is the same to the bit
        return [self.degrees, self.steps]

    def load_state(self, state: npt.NDArray[np.float64]) -> None:
        self.degrees, self.steps = float(state[0]), int(state[1])


def main(folder: str = "runs/heaters", rounds: str = "20") -> None:
    rooms = [{"wanted": 17 + 2 * k} for k in range(4)]  # keyword arguments of each agent's Heater
    task = eq.Task.from_environment(Heater, rooms)
    for method in ("dqnavg", "pfeddqn-rep"):
        run = eq.run(
            f"{folder}/{method}",
            method=method,
            task=task,
            rounds=int(rounds),
            epochs=50,
            overwrite=True,
        )
        final = run.final
        print(
            f"{method}: received {final.received.return_:.0f}, trained {final.trained.return_:.0f}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
