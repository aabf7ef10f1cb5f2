"""An ensemble as a model file of LightGBM, in its text format.

The format is that of LightGBM's `Booster.save_model` (version 4; `gbdt_model_text.cpp` and
`tree.cpp` of its sources). A file predicts what the ensemble predicts, for these reasons:

- Numbers go left if they are at most the threshold, in both; missing ones (NaN) have a side.
- LightGBM sends missing and unknown categories to the right. Where the ensemble sends them to the
  left, the two children are swapped, and the set holds the other categories.
- The base is part of the first tree. Values of regression are in the unit of the target.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from equipoise.data.federated_dataset import Target
from equipoise.trees.arrays import CATEGORY_BITS, Floats, Ints
from equipoise.trees.ensemble import OWN, TREE, Trees
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Params

IS_CATEGORY = 1
IS_DEFAULT_LEFT = 2
IS_NAN_MISSING = 8
"""Bits of LightGBM's `decision_type`."""


class _Split(NamedTuple):
    """One inner node: children are numbers of inner nodes, or `-1 - leaf`."""

    feature: int
    threshold: float
    decision_type: int
    left: int
    right: int


class _Nodes(NamedTuple):
    """A tree in the order of LightGBM.

    Attributes:
        splits: Inner nodes, the root first.
        leaves: Values of leaves.
        sets: Words of 32 bits of each category split, which `threshold` numbers.
    """

    splits: list[_Split | None]
    leaves: list[float]
    sets: list[list[int]]


def lightgbm_text(params: Params, target: Target, features: tuple[str, ...]) -> str:
    """Write an ensemble as LightGBM would.

    Args:
        params: A model.
        target: What it predicts.
        features: Names of the inputs.

    Returns:
        The content of a model file. Its inputs are those of the ensemble, with NaN for missing
        values.

    Raises:
        UsageError: If the model is of survival, for which LightGBM has no objective.
    """
    if target.kind == "survival":
        raise UsageError("LightGBM has no model of survival: export it as onnx")
    num_categories: Ints = params["num_categories"].numpy().astype(np.int64)
    scale = target.scale if target.kind == "regression" else 1.0
    shift = target.mean if target.kind == "regression" else 0.0
    base = params["base"].numpy() * scale + shift
    ensembles = []
    for prefix, count in (("", params["progress"][TREE]), (OWN, params[f"{OWN}count"][0])):
        stack = Trees.from_params({n: v[None] for n, v in params.items()}, prefix)
        ensembles += [stack.iteration(number) for number in range(int(count))]
    texts: list[str] = []
    if not ensembles:  # a model without trees is a leaf
        texts = [_tree_text(_Nodes([], [value], []), k) for k, value in enumerate(base.tolist())]
    for iteration, trees in enumerate(ensembles):
        for margin in range(len(base)):
            first = float(base[margin]) if iteration == 0 else 0.0
            nodes = _nodes(trees.tree(0, margin), num_categories, scale, first)
            texts.append(_tree_text(nodes, len(texts)))
    header = {
        "version": "v4",
        "num_class": len(base),
        "num_tree_per_iteration": len(base),
        "label_index": 0,
        "max_feature_idx": len(features) - 1,
        "objective": _objective(target),
        "feature_names": " ".join(re.sub(r'[\s,\[\]{}":]', "_", name) for name in features),
        "feature_infos": " ".join(_feature_infos(ensembles, num_categories)),
        "tree_sizes": " ".join(str(len(text.encode())) for text in texts),
    }
    head = "".join(f"{name}={value}\n" for name, value in header.items())
    return f"tree\n{head}\n{''.join(texts)}end of trees\n\nparameters:\nend of parameters\n"


def _objective(target: Target) -> str:
    """Return the name of LightGBM's objective."""
    if target.kind == "regression":
        return "regression"
    if len(target.classes) == 2:
        return "binary sigmoid:1"
    return f"multiclass num_class:{len(target.classes)}"


def _feature_infos(ensembles: list[Trees], num_categories: Ints) -> list[str]:
    """Return codes of categories, the range of thresholds of numbers, and `none` if unused."""
    infos = []
    for feature, count in enumerate(num_categories.tolist()):
        cuts = [trees.threshold[trees.feature == feature] for trees in ensembles]
        used: Floats = np.concatenate([np.zeros(0), *cuts])
        if not len(used):
            infos.append("none")
        elif count:
            infos.append(":".join(map(str, range(count))))
        else:
            infos.append(f"[{float(used.min())!r}:{float(used.max())!r}]")
    return infos


def _nodes(tree: Trees, num_categories: Ints, scale: float, base: float) -> _Nodes:
    """Assign numbers to the nodes of a tree as LightGBM does, from the root on."""
    nodes = _Nodes([], [], [])

    def add(node: int) -> int:
        """Add a node and all below it; return its number."""
        feature = int(tree.feature[node])
        if feature < 0:
            nodes.leaves.append(float(tree.value[node]) * scale + base)
            return -len(nodes.leaves)
        number = len(nodes.splits)
        nodes.splits.append(None)
        left = int(tree.left[node])
        right = left + 1
        is_default_left = bool(tree.missing_left[node] > 0)
        words = tree.categories[node].astype(np.int64).tolist()
        threshold = float(tree.threshold[node])
        kind = IS_NAN_MISSING | (IS_DEFAULT_LEFT if is_default_left else 0)
        if any(words):
            kind = IS_CATEGORY
            threshold = float(len(nodes.sets))
            if is_default_left:
                words = _complement(words, int(num_categories[feature]))
                left, right = right, left
            nodes.sets.append(words)
        below = (add(left), add(right))
        nodes.splits[number] = _Split(feature, threshold, kind, *below)
        return number

    add(0)
    return nodes


def _complement(words: list[int], count: int) -> list[int]:
    """Return the categories below `count` that a set does not hold."""
    whole = sum(word << (CATEGORY_BITS * place) for place, word in enumerate(words))
    others = ((1 << count) - 1) & ~whole
    mask = (1 << CATEGORY_BITS) - 1
    return [(others >> (CATEGORY_BITS * place)) & mask for place in range(len(words))]


def _tree_text(nodes: _Nodes, number: int) -> str:
    """Write one tree."""
    splits = [split for split in nodes.splits if split is not None]
    entries: dict[str, list[int] | list[float]] = {
        "num_leaves": [len(nodes.leaves)],
        "num_cat": [len(nodes.sets)],
    }
    if splits:
        entries |= {
            "split_feature": [split.feature for split in splits],
            "threshold": [split.threshold for split in splits],
            "decision_type": [split.decision_type for split in splits],
            "left_child": [split.left for split in splits],
            "right_child": [split.right for split in splits],
        }
    entries["leaf_value"] = nodes.leaves
    if nodes.sets:
        entries["cat_boundaries"] = np.cumsum([0, *map(len, nodes.sets)]).tolist()
        entries["cat_threshold"] = [word for words in nodes.sets for word in words]
    entries |= {"is_linear": [0], "shrinkage": [1]}
    lines = [f"{name}={' '.join(map(repr, values))}\n" for name, values in entries.items()]
    return f"Tree={number}\n{''.join(lines)}\n\n"
