"""The trained policy: what it observes of a federation, its weights, and its file.

The policy observes clients by features without units, so that it carries over to models and data
that it was not trained on. They come from *probes*: a client scores, on its validation rows and
before it trains, the model that it would start from after installing each part.

Symbols: C clients, P = 4 parts (full, backbone, head, none), F features, H hidden units.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.methods.fedpolicy.evidence import mean_of_known, shrunk_advantages
from equipoise.methods.fedpolicy.state import PAPER_PARTS, TINY, BlockSets
from equipoise.rl.nn import DTYPE
from equipoise.utils.errors import UsageError

FEATURES = (
    "one",
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
    "share left x mean advantage of full",
    "share left x own advantage of full",
    "alignment",
    "lack of alignment",
    "has left the gate",
    "gate: full",
    "gate: backbone",
    "gate: head",
    "gate: none",
)
"""The F features of a client; see :func:`client_features`."""
HIDDEN_UNITS = 8
SHIPPED_FILE = "trained.json"
ADVANTAGE_SCALE = 5.0  # brings accuracy differences, relative to the best accuracy, to order one
LOW_ALIGNMENT = 0.2  # below which updates hardly point where those of the others do
MAX_FEATURE = 3.0
START_VALUE = 3.0  # of the gate's part: others have a chance of e^-3 each when training starts


class Observation(NamedTuple):
    """What the server knows of the clients of a federation; `...` are federations side by side.

    Attributes:
        smoothed: Accuracy of the model after installing each part, over probes `[..., C, P]`.
        accuracy: The same at the last probe.
        previous: The same at the probe before; equal to `accuracy` if there was none.
        is_known: Whether the client has probed `[..., C]`.
        installs: Blocks that the client installed last, backbone and head `[..., C, 2]`.
        num_rows: Training rows `[..., C]`.
        num_val_rows: Validation rows `[..., C]`.
        time_left: Share of the run that is left `[...]`.
        gate_part: Part that the gate chooses `[..., C]`.
        has_left: Whether the client has left the gate `[..., C]`.
        alignment: Of the client's first updates with those of the others `[..., C]`.
    """

    smoothed: Tensor
    accuracy: Tensor
    previous: Tensor
    is_known: Tensor
    installs: Tensor
    num_rows: Tensor
    num_val_rows: Tensor
    time_left: Tensor
    gate_part: Tensor
    has_left: Tensor
    alignment: Tensor


def client_features(seen: Observation) -> Tensor:
    """Return the features of every client `[..., C, F]`, see :data:`FEATURES`."""
    known = seen.is_known.to(DTYPE)[..., None]
    accuracy = seen.accuracy.to(DTYPE)
    advantages = shrunk_advantages(seen.smoothed.to(DTYPE), seen.is_known, seen.num_val_rows)
    rise = mean_of_known(accuracy - seen.previous.to(DTYPE), known) / advantages.top
    size = seen.num_rows.to(DTYPE)[..., None]
    log_size = (size / mean_of_known(size, known).clamp(min=TINY)).clamp(min=TINY).log()
    alignment = seen.alignment.to(DTYPE)[..., None]
    installs = seen.installs.to(DTYPE)
    shape = (*accuracy.shape[:-1], 1)
    left = seen.time_left.to(DTYPE)[..., None, None].expand(shape)
    center = ADVANTAGE_SCALE * advantages.center.expand(*shape[:-1], 3)
    own = ADVANTAGE_SCALE * advantages.deviation * known
    columns = [
        torch.ones_like(left),
        center,
        own,
        2 * ADVANTAGE_SCALE * rise[..., :1].expand(shape),
        2 * ADVANTAGE_SCALE * rise[..., -1:].expand(shape),
        left,
        installs.mean(-2, keepdim=True).expand(*shape[:-1], 2),
        installs,
        log_size,
        ADVANTAGE_SCALE * advantages.noise.sqrt(),
        left * center[..., :1],
        left * own[..., :1],
        ADVANTAGE_SCALE * alignment,
        2 * ADVANTAGE_SCALE * (LOW_ALIGNMENT - alignment).clamp(min=0.0),
        seen.has_left.to(DTYPE)[..., None],
        torch.nn.functional.one_hot(seen.gate_part, len(PAPER_PARTS)).to(DTYPE),
    ]
    return torch.cat(columns, -1).clamp(-MAX_FEATURE, MAX_FEATURE)


class PolicyNetwork(NamedTuple):
    """Values of the parts: a hidden layer beside a linear one.

    Attributes:
        linear: `[F, P]`.
        hidden: `[F, H]`; the first feature is one, so that biases are among the weights.
        output: `[H, P]`.
    """

    linear: Tensor
    hidden: Tensor
    output: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Return the value of each part `[..., P]` for features `[..., F]`."""
        return features @ self.linear + torch.tanh(features @ self.hidden) @ self.output


def init_network(generator: torch.Generator) -> PolicyNetwork:
    """Return a network that prefers the gate's part, whatever else it observes."""
    linear = torch.zeros(len(FEATURES), len(PAPER_PARTS), dtype=DTYPE)
    first = FEATURES.index("gate: full")
    linear[first:] = START_VALUE * torch.eye(len(PAPER_PARTS), dtype=DTYPE)
    hidden = torch.randn(len(FEATURES), HIDDEN_UNITS, dtype=DTYPE, generator=generator)
    output = torch.zeros(HIDDEN_UNITS, len(PAPER_PARTS), dtype=DTYPE)
    return PolicyNetwork(linear, hidden / len(FEATURES) ** 0.5, output)


def save_network(network: PolicyNetwork, path: Path, about: Mapping[str, object]) -> None:
    """Write a policy as JSON, with a note on how it was trained.

    Args:
        network: The trained network.
        path: File to write.
        about: Options and seed of the training.
    """
    layers = []
    for name, layer in network._asdict().items():
        rows = [f"[{', '.join(f'{value:.4f}' for value in row)}]" for row in layer.tolist()]
        layers.append(f'"{name}": [\n' + ",\n".join(rows) + "]")
    content = ",\n".join(layers)
    path.write_text(
        f'{{"about": {json.dumps(about)},\n"features": {json.dumps(FEATURES)},\n{content}}}\n'
    )


def load_network(path: str = "") -> PolicyNetwork:
    """Read a policy; the shipped one if no path is given.

    Raises:
        UsageError: If the file cannot be read or is no policy of `equipoise train-policy`.
    """
    shipped = resources.files("equipoise.methods.fedpolicy") / SHIPPED_FILE
    try:
        content = json.loads((Path(path) if path else shipped).read_text())
        if content["features"] != list(FEATURES):
            raise ValueError("its features are others")
        layers = [torch.tensor(content[name], dtype=DTYPE) for name in PolicyNetwork._fields]
        network = PolicyNetwork(*layers)
        logits = network.logits(torch.ones(1, len(FEATURES), dtype=DTYPE))
        if logits.shape != (1, len(PAPER_PARTS)) or not bool(torch.isfinite(logits).all()):
            raise ValueError("its weights do not fit")
    except FileNotFoundError:
        raise UsageError(
            f"policy_file is '{path}': there is no such file; write one with equipoise train-policy"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UsageError(
            f"policy_file is '{path}': cannot be read as a policy ({error}); write one with "
            "equipoise train-policy"
        ) from None
    return network


FOUR_PARTS = BlockSets()
"""The parts of the trained policy."""
