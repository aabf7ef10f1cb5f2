"""Chunks of a cohort, which make sums independent of the number of processes.

Floating-point sums depend on the order of their terms, so that the order must not depend on which
process computes which client: first the clients of a chunk are summed, then the sums of the chunks
one after another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.core import ClientUpdate, Method, Params, State
from equipoise.core.influence import shrink_update
from equipoise.utils import pytree

MAX_CHUNKS = 64  # enough to share a round evenly, few enough that adding their sums is cheap
MAX_CLIENTS_PER_CHUNK = 1024  # bounds the memory of batch plans
MAX_JOINED_CLIENTS = 256  # larger stacks save only 5 % of W1 at 500 clients, and take more memory


def split_into_chunks(clients: int, min_clients: int) -> list[slice]:
    """Split a cohort into chunks of nearly equal size.

    Args:
        clients: The number of clients.
        min_clients: The fewest clients of a chunk, where there are enough. If above 1, the number
            of chunks is a power of two, so that usual numbers of processes get equal parts.

    Returns:
        The chunks as consecutive slices of the cohort.
    """
    parts = max(1, min(MAX_CHUNKS, clients // min_clients))
    if min_clients > 1:
        parts = 1 << (parts.bit_length() - 1)
    parts = max(parts, -(-clients // MAX_CLIENTS_PER_CHUNK))
    return [slice(clients * part // parts, clients * (part + 1) // parts) for part in range(parts)]


def group_chunks(cuts: list[slice]) -> list[list[slice]]:
    """Group neighbouring chunks into stacks of at most `MAX_JOINED_CLIENTS` clients."""
    found: list[list[slice]] = []
    for chunk in cuts:
        if found and chunk.stop - found[-1][0].start <= MAX_JOINED_CLIENTS:
            found[-1].append(chunk)
        else:
            found.append([chunk])
    return found


def relative_to_first(cuts: list[slice]) -> list[slice]:
    """Return the chunks of a group as slices of the group's own stack."""
    first = cuts[0].start
    return [slice(chunk.start - first, chunk.stop - first) for chunk in cuts]


def chunk_index(chunk: slice) -> slice | Tensor:
    """Return an index that copies a chunk's rows unless they are the first of the stack.

    Matrix products may round differently at another alignment in memory.
    """
    return chunk if chunk.start == 0 else torch.arange(chunk.start, chunk.stop)


def sum_chunk(
    method: Method,
    global_params: Params,
    updates: ClientUpdate,
    taken: Tensor,
    weights: Tensor | Params,
    factors: Tensor | None = None,
) -> State | None:
    """Compute the method's partial sums over one chunk.

    Args:
        method: The method.
        global_params: The model that the clients were sent.
        updates: The updates of the chunk, stacked `[K, ...]`.
        taken: Mask `[K]` of the updates to sum.
        weights: Weights of the updates that are taken.
        factors: By which their changes are shrunk; None if none is.

    Returns:
        The sums; None if no update is taken.
    """
    if not bool(taken.any()):
        return None
    if not bool(taken.all()):
        updates = pytree.index(updates, taken)
    if factors is not None:
        updates = shrink_update(updates, global_params, factors)
    contiguous: ClientUpdate = pytree.map_leaves(lambda value: value.contiguous(), updates)
    return method.partial_sums(global_params, contiguous, weights)


def add_chunk_sums(parts: list[State | None]) -> State:
    """Add the sums of chunks in their order."""
    total, *others = [part for part in parts if part is not None]
    for part in others:
        total = pytree.map_leaves(lambda a, b: a + b, total, part)
    return total
