"""Options of gradient boosting."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.config.schema import Options, option

MAX_BINS = 255
"""Bins of a feature: with the one of missing values they fit into a byte."""
MAX_DEPTH = 12
"""Levels of a tree: every level is one exchange."""
MAX_LEAVES = 1024


@dataclass(frozen=True)
class TreeOptions(Options):
    """Options of `--model trees`."""

    trees: int = option(100, "trees: boosting iterations, one tree per class in each", low=1)
    tree_leaves: int = option(
        31, "trees: largest number of leaves; the best split comes first", low=2, high=MAX_LEAVES
    )
    tree_depth: int = option(8, "trees: most splits from the root to a leaf", low=1, high=MAX_DEPTH)
    tree_bins: int = option(
        127, "trees: bins of a column; cuts between bins can be splits", low=2, high=MAX_BINS
    )
    shrinkage: float = option(0.1, "trees: factor of the values of new leaves", above=0, high=1)
    leaf_rows: int = option(20, "trees: fewest training rows of a leaf, over all clients", low=1)
    leaf_l2: float = option(1.0, "trees: L2 penalty of leaf values", low=0)
    row_sample: float = option(
        1.0, "trees: share of the rows that each tree is grown on", above=0, high=1
    )
    column_sample: float = option(
        1.0, "trees: share of the columns that each tree may split", above=0, high=1
    )
    tree_patience: int = option(
        20,
        "trees: stop after this many trees without a lower validation loss; 0 to grow all",
        low=0,
    )

    @property
    def num_nodes(self) -> int:
        """Nodes of a tree, leaves included."""
        leaves: int = min(self.tree_leaves, 2**self.tree_depth)
        return 2 * leaves - 1
