"""Synthetic(alpha, beta): the federation of logistic regression that LEAF, FedProx and PAGE use."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.config.schema import Options, option
from equipoise.data.federated_dataset import ClientData, Federation, Ints, Split

IN_MEMORY = 20_000  # populations up to this size are made once; larger ones by cohort
CACHED = 2_000  # clients of a larger population whose rows are kept
NAMES = ("train", "val", "test", "server test", "server public")
Rows = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class SyntheticConfig(Options):
    """Inputs x ~ N(m_i, diag(j^-1.2)) with m_i ~ N(B_i, 1), B_i ~ N(0, beta^2); labels argmax(x W_i + b_i)."""

    clients: int = option(100, "number of clients", low=1)
    features: int = option(30, "dimension of an input", low=1)
    classes: int = option(30, "number of classes", low=2)
    samples: int = option(
        375, "samples that a client draws on average, the server's share included", low=10
    )
    size_sigma: float = option(
        0.0, "spread of client sizes (standard deviation of their logarithm)", low=0
    )
    alpha: float = option(
        0.0, "how far clients' labelling models differ; 0 is one model for all", low=0
    )
    beta: float = option(1.0, "how far clients' inputs lie apart", low=0)
    server_share: float = option(
        0.2, "share of each client's samples that form the server's test set", above=0, below=1
    )
    public_share: float = option(
        0.04, "further samples, as a share, that form the server's public set", above=0, below=1
    )
    test_share: float = option(
        0.3, "share of the client's own samples kept for its test", above=0, below=1
    )
    val_share: float = option(
        0.1,
        "share of the client's training samples kept for validation; 0 for none",
        low=0,
        below=1,
    )
    server_clients: int = option(
        1000, "at most so many clients contribute to the server's sets", low=1
    )


class Synthetic(ClientData):
    """Every client's rows follow from (seed, client), so any cohort of any population can be made by itself."""

    def __init__(self, config: SyntheticConfig, seed: int) -> None:
        self.config, self.seed = config, seed
        self.clients, self.classes, self.shape = config.clients, config.classes, (config.features,)
        shared = self._generator(config.clients)
        self._weight = shared.standard_normal((config.features, config.classes))
        self._bias = shared.standard_normal(config.classes)
        self._spread = (
            np.arange(1, config.features + 1) ** -0.6
        )  # standard deviation of variance j^-1.2
        self._made: OrderedDict[int, dict[str, Rows]] = OrderedDict()
        self._last: dict[str, tuple[bytes, Split]] = {}
        self._server: dict[str, tuple[Tensor, Tensor]] = {}
        self._all = self._in_memory() if config.clients <= IN_MEMORY else None

    def split(self, ids: Ints, name: str) -> Split:
        if self._all is not None:
            return self._all.split(ids, name)
        key, last = ids.tobytes(), self._last.get(name)
        if last is None or last[0] != key:
            x, y, sizes = _join([self._client(int(i))[name] for i in ids])
            last = self._last[name] = key, Split(x, y, np.cumsum(sizes) - sizes, sizes)
        return last[1]

    def sizes(self, ids: Ints, name: str) -> Ints:
        """Without making the rows."""
        if self._all is not None:
            return self._all.sizes(ids, name)
        place = NAMES.index(name)
        if not self.config.size_sigma:
            return np.full(len(ids), self._counts(self._drawn(self._generator(0)))[place])
        return np.array([self._counts(self._drawn(self._generator(int(i))))[place] for i in ids])

    def server(self, name: str) -> tuple[Tensor, Tensor]:
        if name not in self._server:
            lenders = range(min(self.clients, self.config.server_clients))
            x, y, _ = _join([self._client(i)[f"server {name}"] for i in lenders])
            self._server[name] = x, y
        return self._server[name]

    def has_split(self, name: str) -> bool:
        return name != "val" or self.config.val_share > 0

    def _generator(self, client: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=[self.seed % 2**64, client]))

    def _in_memory(self) -> Federation:
        clients = [self._make(i) for i in range(self.clients)]
        splits = {
            name: _join([c[name] for c in clients])
            for name in ("train", "val", "test")
            if self.has_split(name)
        }
        lenders = clients[: self.config.server_clients]
        for name in ("public", "test"):
            x, y, _ = _join([c[f"server {name}"] for c in lenders])
            self._server[name] = x, y
        return Federation(splits, self._server, self.classes)

    def _client(self, client: int) -> dict[str, Rows]:
        rows = self._made.get(client)
        if rows is None:
            rows = self._made[client] = self._make(client)
            if len(self._made) > CACHED:
                self._made.popitem(last=False)
        return rows

    def _drawn(self, rng: np.random.Generator) -> int:
        """How many samples a client draws, the public ones aside."""
        c = self.config
        scale = rng.standard_normal() * c.size_sigma - c.size_sigma**2 / 2
        return max(10, round(c.samples * float(np.exp(scale))))

    def _counts(self, n: int) -> list[int]:
        """Rows of each of the splits."""
        c = self.config
        n_server = max(1, round(c.server_share * n))
        n_test = max(1, round(c.test_share * (n - n_server)))
        n_train = n - n_server - n_test
        n_val = max(1, round(c.val_share * n_train)) if c.val_share else 0
        return [n_train - n_val, n_val, n_test, n_server, max(1, round(c.public_share * n))]

    def _make(self, client: int) -> dict[str, Rows]:
        c, rng = self.config, self._generator(client)
        counts = self._counts(self._drawn(rng))
        mean = rng.standard_normal() * c.beta + rng.standard_normal(c.features)
        weight, bias = self._weight, self._bias
        if c.alpha:
            weight = weight + c.alpha * rng.standard_normal(weight.shape)
            bias = bias + c.alpha * rng.standard_normal(bias.shape)
        x = rng.standard_normal((sum(counts), c.features))
        x *= self._spread
        x += mean
        logits = x @ weight
        logits += bias
        y, stored = logits.argmax(axis=1), x.astype(np.float32)
        ends = list(accumulate(counts, initial=0))
        return {
            name: (stored[a:b], y[a:b]) for name, (a, b) in zip(NAMES, pairwise(ends), strict=True)
        }


def _join(parts: list[Rows]) -> tuple[Tensor, Tensor, Ints]:
    x = torch.from_numpy(np.concatenate([x for x, _ in parts]))
    y = torch.from_numpy(np.concatenate([y for _, y in parts]))
    return x, y, np.array([len(y) for _, y in parts], dtype=np.int64)
