"""The trained policy: what it observes of a federation, its network, and its file.

The policy observes clients by features without units, so that it carries over to models and data
that it was not trained on. They come from *probes*: a client scores, on its validation rows and
before it trains, the model that it would start from after installing each part.

Symbols: C clients, P = 4 parts (full, backbone, head, none), F features, H hidden units.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.methods.fedpolicy.state import PAPER_PARTS, TINY, BlockSets
from equipoise.rl.nn import DTYPE
from equipoise.utils.errors import UsageError

FEATURES = (
    "mean advantage of full",
    "mean advantage of backbone",
    "mean advantage of head",
    "own advantage of full",
    "own advantage of backbone",
    "own advantage of head",
    "rise of the received model",
    "rise of the own model",
    "share of the run that is left",
    "share of clients that installed the backbone",
    "share of clients that installed the head",
    "installed the backbone",
    "installed the head",
    "log size",
    "uncertainty",
)
"""The F features of a client; see :func:`client_features`."""
HIDDEN_UNITS = 16
DECISIONS_PER_RUN = 12  # a part is held for a twelfth of the run
SHIPPED_FILE = "trained.json"
ROW_VARIANCE = 0.1  # of the difference of two scores on one row: how often two models disagree
ADVANTAGE_SCALE = 5.0  # brings accuracy differences, relative to the best accuracy, to order one
MAX_FEATURE = 3.0


class Observation(NamedTuple):
    """What the server knows of the clients of a federation; `...` are federations side by side.

    Attributes:
        accuracy: Of the model after installing each part, at the last probe `[..., C, P]`.
        previous: The same at the probe before; equal to `accuracy` if there was none.
        is_known: Whether the client has probed `[..., C]`.
        installs: Blocks that the client installed last, backbone and head `[..., C, 2]`.
        num_rows: Training rows `[..., C]`.
        num_val_rows: Validation rows `[..., C]`.
        time_left: Share of the run that is left `[...]`.
    """

    accuracy: Tensor
    previous: Tensor
    is_known: Tensor
    installs: Tensor
    num_rows: Tensor
    num_val_rows: Tensor
    time_left: Tensor


def client_features(seen: Observation) -> Tensor:
    """Return the features of every client `[..., C, F]`, see :data:`FEATURES`.

    The advantage of a part is its accuracy less that of the client's own model, relative to the
    clients' mean best accuracy. Few validation rows say little about one client, so its own
    advantage is the deviation from the clients' mean, shrunk by tau^2 / (tau^2 + s_i^2): tau^2 is
    the variance over clients beyond the noise s_i^2 of the rows (empirical Bayes).
    """
    known = seen.is_known.to(DTYPE)[..., None]
    count = known.sum(-2, keepdim=True).clamp(min=1.0)

    def mean(values: Tensor) -> Tensor:
        return (values * known).sum(-2, keepdim=True) / count

    accuracy = seen.accuracy.to(DTYPE)
    top = mean(accuracy.max(-1, keepdim=True).values).clamp(min=TINY)
    advantage = (accuracy[..., :-1] - accuracy[..., -1:]) / top
    center = mean(advantage)
    variance = mean((advantage - center).square())
    noise = ROW_VARIANCE / seen.num_val_rows.to(DTYPE).clamp(min=1.0)[..., None] / top.square()
    tau_sq = (variance - mean(noise)).clamp(min=0.0)
    own = (advantage - center) * tau_sq / (tau_sq + noise)
    rise = mean(accuracy - seen.previous.to(DTYPE)) / top
    size = seen.num_rows.to(DTYPE)[..., None]
    log_size = (size / mean(size).clamp(min=TINY)).clamp(min=TINY).log()
    installs = seen.installs.to(DTYPE)
    shape = (*accuracy.shape[:-1], 1)
    columns = [
        ADVANTAGE_SCALE * center.expand(*shape[:-1], 3),
        ADVANTAGE_SCALE * own * known,
        2 * ADVANTAGE_SCALE * rise[..., :1].expand(shape),
        2 * ADVANTAGE_SCALE * rise[..., -1:].expand(shape),
        seen.time_left.to(DTYPE)[..., None, None].expand(shape),
        installs.mean(-2, keepdim=True).expand(*shape[:-1], 2),
        installs,
        log_size,
        ADVANTAGE_SCALE * noise.sqrt(),
    ]
    return torch.cat(columns, -1).clamp(-MAX_FEATURE, MAX_FEATURE)


@dataclass(frozen=True)
class PolicyNetwork:
    """A network with one hidden layer: logits of the parts from the features of a client.

    Attributes:
        w1: `[F, H]`.
        b1: `[H]`.
        w2: `[H, P]`.
        b2: `[P]`.
    """

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Return `[..., P]` for features `[..., F]`."""
        return torch.tanh(features @ self.w1 + self.b1) @ self.w2 + self.b2

    def save(self, path: Path, about: dict[str, object]) -> None:
        """Write the network and a note on how it was trained as JSON."""
        weights = {name: getattr(self, name).detach().tolist() for name in ("w1", "b1", "w2", "b2")}
        rounded = json.loads(json.dumps(weights), parse_float=lambda text: round(float(text), 4))
        content = {"about": about, "features": FEATURES, "parts": PAPER_PARTS, "weights": rounded}
        path.write_text(json.dumps(content, indent=None) + "\n")


def init_network(generator: torch.Generator) -> PolicyNetwork:
    """Return a network that prefers `full` a little, whatever it observes."""
    w1 = torch.randn(len(FEATURES), HIDDEN_UNITS, dtype=DTYPE, generator=generator)
    w2 = torch.randn(HIDDEN_UNITS, len(PAPER_PARTS), dtype=DTYPE, generator=generator)
    b2 = torch.zeros(len(PAPER_PARTS), dtype=DTYPE)
    b2[0] = 1.0
    zeros = torch.zeros(HIDDEN_UNITS, dtype=DTYPE)
    return PolicyNetwork(w1 / math.sqrt(len(FEATURES)), zeros, 0.1 * w2, b2)


def load_network(path: str = "") -> PolicyNetwork:
    """Read a policy that `equipoise train-policy` wrote; the shipped one if no path is given.

    Raises:
        UsageError: If the file cannot be read or is no such policy.
    """
    shipped = resources.files("equipoise.methods.fedpolicy") / SHIPPED_FILE
    source = Path(path) if path else shipped
    try:
        content = json.loads(source.read_text())
        if content["features"] != list(FEATURES) or content["parts"] != list(PAPER_PARTS):
            raise ValueError("its features or parts are others")
        weights = {
            name: torch.tensor(value, dtype=DTYPE) for name, value in content["weights"].items()
        }
        network = PolicyNetwork(**weights)
        logits = network.logits(torch.zeros(1, len(FEATURES), dtype=DTYPE))
        if logits.shape != (1, len(PAPER_PARTS)) or not bool(torch.isfinite(logits).all()):
            raise ValueError("its weights are damaged")
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UsageError(
            f"policy_file is '{path}': cannot be read as a policy ({error}); write one with "
            "equipoise train-policy"
        ) from None
    return network


def hold_rounds(num_rounds: int) -> int:
    """Return for how many rounds a client keeps its part: a twelfth of the run, at least one."""
    return max(1, round(num_rounds / DECISIONS_PER_RUN))


FOUR_PARTS = BlockSets()
"""The parts of the trained policy."""
