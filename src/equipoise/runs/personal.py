"""Personal models of all clients seen, in parts: however many clients there are, few of their models are in memory."""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.contract import Params
from equipoise.core.trees import Ints
from equipoise.runtime.round import FederatedSimulation

AT_ONCE = 250  # clients: with the rows and the outputs of so many, scoring stays small beside a round
Parts = Iterable[tuple[Ints, Params]]
"""Some clients and the stack of their models, part by part."""


def parted(ids: Ints) -> list[Ints]:
    """These clients, a bounded number in each part; one empty part of nobody."""
    return [ids[first : first + AT_ONCE] for first in range(0, max(1, len(ids)), AT_ONCE)]


def personal_parts(simulation: FederatedSimulation) -> Parts:
    """Clients seen and the stack of their personal models, part by part; empty stacks where none are kept."""
    return map(simulation.personal_models, parted(simulation.store.ids))
