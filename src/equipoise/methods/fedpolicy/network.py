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
DECISIONS_PER_RUN = 12  # a part is held for a twelfth of the run
SHIPPED_FILE = "trained.json"
ROW_VARIANCE = 0.1  # of the difference of two scores on one row: how often two models disagree
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


class Advantages(NamedTuple):
    """Advantages of parts over the client's own model, relative to the clients' best accuracy.

    Attributes:
        center: Mean over the clients that have probed `[..., 1, P - 1]`.
        deviation: A client's own deviation from it, shrunk `[..., C, P - 1]`.
        noise: Variance of a client's advantage by its validation rows `[..., C, 1]`.
        top: The clients' mean best accuracy, which is the unit `[..., 1, 1]`.
    """

    center: Tensor
    deviation: Tensor
    noise: Tensor
    top: Tensor


def shrunk_advantages(accuracy: Tensor, is_known: Tensor, num_val_rows: Tensor) -> Advantages:
    """Pool the evidence of all clients on every part.

    Few validation rows say little about one client, so its deviation from the clients' mean is
    shrunk by tau^2 / (tau^2 + s_i^2): tau^2 is the variance over clients beyond the noise s_i^2 of
    the rows (empirical Bayes).

    Args:
        accuracy: Of the model after installing each part `[..., C, P]`; the last is the own model.
        is_known: Whether the client has probed `[..., C]`.
        num_val_rows: Validation rows `[..., C]`.
    """
    known = is_known.to(DTYPE)[..., None]
    top = _mean_of_known(accuracy.max(-1, keepdim=True).values, known).clamp(min=TINY)
    advantage = (accuracy[..., :-1] - accuracy[..., -1:]) / top
    center = _mean_of_known(advantage, known)
    variance = _mean_of_known((advantage - center).square(), known)
    noise = ROW_VARIANCE / num_val_rows.to(DTYPE).clamp(min=1.0)[..., None] / top.square()
    tau_sq = (variance - _mean_of_known(noise, known)).clamp(min=0.0)
    deviation = (advantage - center) * tau_sq / (tau_sq + noise)
    return Advantages(center, deviation, noise, top)


def _mean_of_known(values: Tensor, known: Tensor) -> Tensor:
    """Return the mean of values `[..., C, F]` over the clients with weight one in `[..., C, 1]`."""
    return (values * known).sum(-2, keepdim=True) / known.sum(-2, keepdim=True).clamp(min=1.0)


def client_features(seen: Observation) -> Tensor:
    """Return the features of every client `[..., C, F]`, see :data:`FEATURES`."""
    known = seen.is_known.to(DTYPE)[..., None]
    accuracy = seen.accuracy.to(DTYPE)
    found = shrunk_advantages(seen.smoothed.to(DTYPE), seen.is_known, seen.num_val_rows)
    rise = _mean_of_known(accuracy - seen.previous.to(DTYPE), known) / found.top
    size = seen.num_rows.to(DTYPE)[..., None]
    log_size = (size / _mean_of_known(size, known).clamp(min=TINY)).clamp(min=TINY).log()
    alignment = seen.alignment.to(DTYPE)[..., None]
    installs = seen.installs.to(DTYPE)
    shape = (*accuracy.shape[:-1], 1)
    left = seen.time_left.to(DTYPE)[..., None, None].expand(shape)
    center = ADVANTAGE_SCALE * found.center.expand(*shape[:-1], 3)
    own = ADVANTAGE_SCALE * found.deviation * known
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
        ADVANTAGE_SCALE * found.noise.sqrt(),
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
    """Write a policy as JSON, with a note on how it was trained."""
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
