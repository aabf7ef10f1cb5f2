"""Ensembles of trees as arrays of a fixed size, and as a module that predicts.

A tree is a list of nodes. Node 0 is the root; the children of a node follow one another.

A model has the blocks `backbone` (the trees of all clients) and `head` (a client's own trees, whose
names begin with `own_`). Unused trees have no splits and the value 0.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.data.transforms import MISSING_INPUT
from equipoise.trees.arrays import CATEGORY_BITS, ClientSpans, Floats, Floats32, Ints
from equipoise.trees.config import TreeOptions
from equipoise.utils.pytree import Params

HAS_KERNELS = find_spec("numba") is not None
"""Whether trees can be grown here; ensembles predict without kernels too, only slower."""
NO_FEATURE = -1.0
"""Feature of a leaf."""
NO_NODE = -1.0
"""Unused places in `asked`, the nodes whose sums clients send."""
OWN = "own_"
"""Prefix of the parameters of a client's own trees."""
TREE_NAMES = ("feature", "threshold", "missing_left", "left", "categories", "value")
COMMON_NAMES = ("base", "progress", "asked", "limits", "num_categories", "edges", *TREE_NAMES)
OWN_NAMES = (*(f"{OWN}{name}" for name in TREE_NAMES), f"{OWN}count")
STAGE, TREE, LEVEL, DEPTH = range(4)
"""Places in `progress`: the stage of the training, complete trees, complete levels of the next, and
the largest depth of a tree."""


class Trees(NamedTuple):
    """Trees of G models, T iterations and C margins, with N nodes each.

    Attributes:
        feature: Features of nodes `[G, T, C, N]`, -1 at leaves and for nodes that are not used.
        threshold: Largest values that go left, of the same shape.
        missing_left: 1 where missing values go left, of the same shape.
        left: Left children, of the same shape; the right child is the next node.
        categories: Categories that go left, as words of 32 bits `[G, T, C, N, W]`.
        value: Values of nodes, of the shape of `feature`.
    """

    feature: Floats32
    threshold: Floats32
    missing_left: Floats32
    left: Floats32
    categories: Floats
    value: Floats

    @classmethod
    def empty(cls, models: int, trees: int, margins: int, nodes: int, words: int) -> Trees:
        """Return trees without splits."""
        shape = (models, trees, margins, nodes)
        return cls(
            feature=np.full(shape, -1.0, np.float32),
            threshold=np.zeros(shape, np.float32),
            missing_left=np.zeros(shape, np.float32),
            left=np.zeros(shape, np.float32),
            categories=np.zeros((*shape, words)),
            value=np.zeros(shape),
        )

    @classmethod
    def from_params(cls, stack: Params, prefix: str = "") -> Trees:
        """Return the trees of models.

        Args:
            stack: Parameters `[G, ...]`. They are not copied where they are contiguous.
            prefix: `own_` for the clients' own trees.
        """
        return cls(*(stack[prefix + name].contiguous().numpy() for name in TREE_NAMES))

    @classmethod
    def of_iteration(cls, params: Params, tree: int) -> Trees:
        """Return the trees of one iteration of one model, without the axis T `[1, C, N]`."""
        return cls(*(params[name][tree : tree + 1].numpy() for name in TREE_NAMES))

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """All arrays, in the order of `TREE_NAMES`."""
        return list(self)

    def map(self, function: Callable[[NDArray[Any]], NDArray[Any]]) -> Trees:
        """Return the results of a function of each array."""
        return Trees(*map(function, self.arrays))

    def iteration(self, tree: int) -> Trees:
        """Return views of one iteration, without the axis T."""
        return self.map(lambda array: array[:, tree])

    def tree(self, model: int, margin: int) -> Trees:
        """Return views of one tree of an iteration, `[N]`."""
        return self.map(lambda array: array[model, margin])

    def contiguous(self) -> Trees:
        """Return arrays that kernels can read fast; they are copied only if they are views."""
        return self.map(np.ascontiguousarray)

    def copy(self) -> Trees:
        """Return copies of all arrays."""
        return self.map(np.copy)

    def params(self, prefix: str = "") -> Params:
        """Return the arrays as tensors `[G, ...]` by name."""
        return {
            prefix + name: torch.from_numpy(array)
            for name, array in zip(TREE_NAMES, self.arrays, strict=True)
        }

    def has_prefix(self, other: Trees, num_trees: int) -> bool:
        """Return whether the first trees equal those of other arrays."""
        return all(
            np.array_equal(mine[:, :num_trees], theirs[:, :num_trees])
            for mine, theirs in zip(self.arrays, other.arrays, strict=True)
        )

    def cleared_after(self, num_trees: Ints) -> Trees:
        """Return copies without the trees after the first `num_trees` `[G]` of each model."""
        trees = self.copy()
        for model, count in enumerate(num_trees.tolist()):
            trees.feature[model, count:] = -1.0
            for array in trees.arrays[1:]:
                array[model, count:] = 0.0
        return trees


def empty_params(
    num_categories: Ints, margins: int, options: TreeOptions, max_own_trees: int
) -> Params:
    """Return a model without trees.

    Args:
        num_categories: Categories of each input `[F]`; 0 for numbers.
        margins: Trees of an iteration.
        options: Sizes of the trees.
        max_own_trees: Iterations that a client may add.
    """
    words = category_words(num_categories)
    nodes = options.num_nodes
    trees = Trees.empty(1, options.trees, margins, nodes, words)
    own = Trees.empty(1, max_own_trees, margins, nodes, words)
    progress = torch.zeros(4, dtype=torch.float64)
    progress[DEPTH] = options.tree_depth
    asked = torch.full((margins, nodes - 1), NO_NODE, dtype=torch.float64)
    asked[:, 0] = 0.0
    params: Params = {
        "base": torch.zeros(margins, dtype=torch.float64),
        "progress": progress,
        "asked": asked,
        "limits": torch.zeros(3, dtype=torch.float64),
        "num_categories": torch.from_numpy(num_categories.astype(np.float64)),
        "edges": torch.zeros(len(num_categories), options.tree_bins - 1, dtype=torch.float64),
    }
    params |= {name: value[0] for name, value in trees.params().items()}
    params |= {name: value[0] for name, value in own.params(OWN).items()}
    params[f"{OWN}count"] = torch.zeros(1, dtype=torch.float64)
    return params


def asked_nodes(asked: Floats) -> Ints:
    """Return the nodes of `asked` `[C, P]`, without the places that no tree uses."""
    nodes = asked.astype(np.int64)
    return np.ascontiguousarray(nodes[:, (nodes >= 0).any(0)])


def max_sum(limits: Tensor) -> float:
    """Return the bound of a client's sums from `limits` `[3]`; 0 if it is not known."""
    max_gradient, max_hessian, max_rows = limits.tolist()
    return float(max(max_gradient, max_hessian) * max_rows)


def category_words(num_categories: Ints) -> int:
    """Return the number of words that hold a bit for every category."""
    return -(-int(num_categories.max(initial=0)) // CATEGORY_BITS)


def margins_of(params: Params, x: Floats32) -> Floats:
    """Compute the margins of one model.

    Args:
        params: A model.
        x: Inputs `[n, F]`.

    Returns:
        Margins `[C, n]`.
    """
    from equipoise.trees.histograms import add_trees

    stack = {name: value.detach()[None] for name, value in params.items()}
    margins = np.repeat(stack["base"].numpy()[0][:, None], len(x), axis=1)
    for prefix, count in (
        ("", float(stack["progress"][0, TREE])),
        (OWN, float(stack[f"{OWN}count"][0, 0])),
    ):
        trees = Trees.from_params(stack, prefix)
        everything = ClientSpans.of_one_model(np.array([0]), np.array([len(x)]))
        first = np.zeros(1, np.int64)
        add_trees(np.ascontiguousarray(x), everything, first, int(count), trees, margins)
    return margins


class TreeEnsemble(nn.Module):
    """An ensemble that maps inputs `[n, F]` to the outputs of a network for the same target.

    It takes the sizes of the arrays that are loaded into it.
    """

    base: Tensor
    progress: Tensor
    num_categories: Tensor
    own_count: Tensor

    def __init__(self, num_outputs: int, params: Params) -> None:
        """Create the module.

        Args:
            num_outputs: Outputs of a network for the same target.
            params: A model.
        """
        super().__init__()
        self.num_outputs = num_outputs
        for name, value in params.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, standardised values or log risks `[n, outputs]`."""
        is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if is_traced or not HAS_KERNELS:
            outputs = self.base + torch.zeros_like(x[:, :1], dtype=torch.float64)
            for prefix, count in (("", self.progress[TREE]), (OWN, self.own_count[0])):
                if int(count):
                    outputs = outputs + self._sum_leaves(x, prefix, int(count))
        else:  # the kernel of training, which is faster
            outputs = torch.from_numpy(margins_of(dict(self.named_buffers()), x.numpy()).T)
        if outputs.shape[1] != self.num_outputs:  # two classes have one margin, the log odds
            outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
        return outputs.float()

    def with_codes(self, x: Tensor) -> Tensor:
        """Return inputs `[n, F]` that rows can have, to compare two versions of the model.

        Categories become codes, and the diagonal of the table missing values.

        Args:
            x: Numbers of any size.
        """
        count = self.num_categories.clamp(min=1)
        codes = torch.floor(x.abs() * 1000) % count
        x = torch.where(self.num_categories > 0, codes, x).float()
        rows = torch.arange(len(x))
        x[rows, rows % x.shape[1]] = MISSING_INPUT
        return x

    def _sum_leaves(self, x: Tensor, prefix: str, count: int) -> Tensor:
        """Return the sums of the first trees `[n, C]`, in operations that can be exported."""
        feature, threshold, missing_left, left, categories, value = (
            getattr(self, prefix + name)[:count] for name in TREE_NAMES
        )
        # Under a trace sizes are tensors; those of the model are constants.
        num_margins = int(feature.shape[1])
        num_nodes = int(feature.shape[2])
        num_trees = count * num_margins
        num_words = int(categories.shape[3])
        place = torch.arange(num_trees)
        node = torch.zeros_like(x[:, :1], dtype=torch.int64).expand(-1, num_trees)
        for _ in range(int(self.progress[DEPTH])):
            here = place * num_nodes + node
            split = feature.flatten()[here]
            number = x.gather(1, split.clamp(min=0).long())
            is_default_left = missing_left.flatten()[here] > 0
            goes_left = number <= threshold.flatten()[here]
            if num_words:
                words = categories.reshape(-1, num_words)[here]
                code = number.clamp(0, CATEGORY_BITS * num_words - 1).long()
                word = words.gather(2, (code // CATEGORY_BITS).unsqueeze(2)).squeeze(2)
                bit = torch.floor(word / torch.pow(2.0, (code % CATEGORY_BITS).double())) % 2 == 1
                is_known = (number >= 0) & (number < CATEGORY_BITS * num_words)
                in_set = _choose(is_known, bit, is_default_left)
                goes_left = _choose((words > 0).any(2), in_set, goes_left)
            goes_left = _choose(number < MISSING_INPUT / 10, is_default_left, goes_left)
            below = left.flatten()[here].long() + 1 - goes_left.long()
            node = torch.where(split < 0, node, below)
        leaves: Tensor = value.flatten()[place * num_nodes + node]
        return leaves.reshape(-1, count, num_margins).sum(1)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *more: Any) -> None:
        """Take the sizes of the loaded arrays."""
        for name, own in list(self.named_buffers()):
            loaded = state_dict.get(prefix + name)
            if loaded is not None and loaded.shape != own.shape:
                setattr(self, name, torch.empty_like(loaded))
        super()._load_from_state_dict(state_dict, prefix, *more)


def _choose(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Return `torch.where` of flags, which ONNX Runtime does not have."""
    return (condition & yes) | (~condition & no)
