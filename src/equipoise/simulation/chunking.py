"""Chunks of a cohort: computed together and summed first, the same whatever the number of processes.

Numbers that are added in another order round otherwise, so the order must not depend on who computes what: clients of a
chunk are summed, then the chunks' sums one after another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.core import ClientUpdate, Method, Params, State
from equipoise.utils import pytree

MAX_CHUNKS = (
    64  # enough to share a round among processes evenly, few enough that their sums cost little
)
MAX_CLIENTS_PER_CHUNK = 1024  # bounds the memory of batch plans whatever the size of the cohort
MAX_JOINED_CLIENTS = (
    256  # larger stacks save little time (5 % of W1 at 500 clients), but take more memory
)


def split_into_chunks(clients: int, min_clients: int) -> list[slice]:
    """Chunks of at least so many clients where there are enough, as even as can be.

    Where clients are stacked (``least`` > 1), a power of two chunks: usual numbers of processes get equal parts.
    """
    parts = max(1, min(MAX_CHUNKS, clients // min_clients))
    if min_clients > 1:
        parts = 1 << (parts.bit_length() - 1)
    parts = max(parts, -(-clients // MAX_CLIENTS_PER_CHUNK))
    return [slice(clients * part // parts, clients * (part + 1) // parts) for part in range(parts)]


def group_chunks(cuts: list[slice]) -> list[list[slice]]:
    """Neighbouring chunks that may be computed as one stack of at most ``MAX_JOINED_CLIENTS`` clients."""
    found: list[list[slice]] = []
    for chunk in cuts:
        if found and chunk.stop - found[-1][0].start <= MAX_JOINED_CLIENTS:
            found[-1].append(chunk)
        else:
            found.append([chunk])
    return found


def relative_to_first(cuts: list[slice]) -> list[slice]:
    """The chunks of a group as slices of the group's own stack."""
    first = cuts[0].start
    return [slice(chunk.start - first, chunk.stop - first) for chunk in cuts]


def chunk_index(chunk: slice) -> slice | Tensor:
    """The index of a chunk's rows in a stack, such that they begin where memory does: products of matrices may round
    otherwise where they lie elsewhere."""
    return chunk if chunk.start == 0 else torch.arange(chunk.start, chunk.stop)


def sum_chunk(
    method: Method,
    global_params: Params,
    updates: ClientUpdate,
    taken: Tensor,
    weights: Tensor | Params,
) -> State | None:
    """The method's sums over the clients of one chunk whose upload is ``taken``; ``weights`` are those of the taken."""
    if not bool(taken.any()):
        return None
    if not bool(taken.all()):
        updates = pytree.index(updates, taken)
    contiguous: ClientUpdate = pytree.map_leaves(lambda value: value.contiguous(), updates)
    return method.partial_sums(global_params, contiguous, weights)


def add_chunk_sums(parts: list[State | None]) -> State:
    """The sums of chunks, added in their order."""
    total, *others = [part for part in parts if part is not None]
    for part in others:
        total = pytree.map_leaves(lambda a, b: a + b, total, part)
    return total
