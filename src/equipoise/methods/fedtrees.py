"""Federated gradient boosting: histograms are summed, so that the ensemble is the pooled one.

The exchange follows the histogram algorithm of Ke et al., "LightGBM: A Highly Efficient Gradient
Boosting Decision Tree", NeurIPS 2017, with sums over clients in place of sums over machines. Trees
of single clients on top of the common ones are a method of this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
    Client,
    ClientUpdate,
    Method,
    Options,
    Params,
    Server,
    ServerMessage,
    State,
    Task,
    TrainingConfig,
    ValueRange,
    equal_weights,
    option,
)
from equipoise.core.report_validation import CHECKED_BY_METHOD
from equipoise.trees import binning, interface
from equipoise.trees.arrays import Flags
from equipoise.trees.config import TreeOptions
from equipoise.trees.ensemble import (
    COMMON_NAMES,
    LEVEL,
    NO_FEATURE,
    NO_NODE,
    OWN,
    OWN_NAMES,
    STAGE,
    TREE,
    TREE_NAMES,
    Trees,
    asked_nodes,
    max_sum,
)
from equipoise.trees.interface import TreeTask, require_trees
from equipoise.trees.objectives import sums_unit
from equipoise.trees.validation import (
    Limits,
    SumsHistory,
    impossible_counts,
    impossible_losses,
    impossible_sums,
)
from equipoise.utils import rng
from equipoise.utils.errors import UsageError

if TYPE_CHECKING:
    from equipoise.trees.growth import Growth

AUTO = "auto"
GROWING = "growing"
"""Sent until the common trees are complete: clients need not look for own ones."""
NOTHING = -1
"""In `held`: the client has neither bins nor trees."""
NO_PARENTS = torch.zeros(1, dtype=torch.float64)
"""State of a level whose sums are all asked for."""
MAX_SUM = 2.0**33
"""Bound of every reported sum: larger ones would not be exact."""


@dataclass(frozen=True)
class FedTrees(Method):
    """Grow one ensemble of trees from the sums of all clients, then own trees of each client.

    Rounds 1 and 2 agree on bins. Every following round adds one level to the tree that is grown:
    clients send the sums of gradients and hessians per bin of the smaller child of every new split,
    and the server sends the splits. In the last round each client may add trees of its own.

    The sums of a larger child are those of its parent minus those of its sibling, which needs the
    same clients in both. If others replied, the round's sums are dropped and those of both children
    are asked for, until a whole tree had the same clients again.

    The server state holds the grid of the bins (`grid`), the lowest mean validation loss so far and
    the number of trees that had it (`best`), gains and parents' sums of the growing tree (`gain`,
    `parents`, see `trees.growth.Growth`), the clients that replied last and before (`replied`,
    `members`), whether others replied in the last and in this tree (`changed`), and the trees that
    each client has (`held`, -1 for none).
    """

    name: ClassVar[str] = "fedtrees"
    family: ClassVar[str] = "parts"
    model: ClassVar[str] = "trees"
    capabilities: ClassVar[Capabilities] = Capabilities(
        learner_kind=interface.LEARNER_KIND,
        aggregates_by_sum=True,
        needs_previous_model=True,
        needs_same_round_replies=True,
        bounds_influence=True,
        uploads_vary=True,
    )
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {
        "sums": CHECKED_BY_METHOD,
        "cells": CHECKED_BY_METHOD,
        "target": ValueRange(-MAX_SUM, MAX_SUM),
        "val": ValueRange(0.0, MAX_SUM),
    }
    personal_trees: str = option(
        AUTO,
        f"trees that each client adds on its own rows: a number up to {interface.MAX_OWN_TREES}, "
        "or auto to choose number and shrinkage on its validation rows",
    )

    def __post_init__(self) -> None:
        """Check `personal_trees`."""
        super().__post_init__()
        if self.personal_trees == AUTO:
            return
        if not self.personal_trees.isdecimal() or self._num_personal > interface.MAX_OWN_TREES:
            raise UsageError(
                f"personal_trees is '{self.personal_trees}': must be auto or a whole number from 0 "
                f"to {interface.MAX_OWN_TREES}"
            )

    @property
    def _num_personal(self) -> int:
        """Own trees of each client, -1 to choose."""
        return -1 if self.personal_trees == AUTO else int(self.personal_trees)

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse tasks whose model has no trees."""
        require_trees(self, task)

    def num_rounds(self, requested: int, task: Options) -> int:
        """Return two rounds for bins, one for each level of each tree, and one for own trees."""
        if not isinstance(task, TreeOptions):
            return requested
        return binning.NUM_STAGES + task.trees * task.tree_depth + 1

    def has_global(self, task: Task) -> bool:
        """Return True: without own trees the model is complete."""
        return True

    # --- client -----------------------------------------------------------------------------

    def receive(self, client: Client) -> tuple[Params, State]:
        """Take the common trees, without own ones."""
        received = dict(client.message.params)
        for name in OWN_NAMES:  # they are not sent
            received[name] = torch.full_like(
                received[name], NO_FEATURE if name == f"{OWN}feature" else 0.0
            )
        return received, client.state

    def train(self, client: Client) -> tuple[Params, State]:
        """Add own trees, if the common ones are complete."""
        if GROWING in client.message.broadcast:
            return client.start, client.state
        asked = torch.full_like(client.id, self._num_personal)
        own = client.fit(client.start, aux={"own_trees": asked})
        return {**client.start, **{name: own[name] for name in OWN_NAMES}}, client.state

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Send counts of values, or sums of gradients of the open nodes."""
        aux = {"statistics": torch.ones_like(client.id), **client.message.broadcast}
        aux.pop(GROWING, None)
        common = {name: client.start[name] for name in COMMON_NAMES}
        return ClientUpdate({}, client.fit(common, aux=aux)), client.state

    # --- server -----------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        """Start with the fixed grid."""
        num_features = len(require_trees(self, task).num_categories)
        nobody = torch.zeros(task.info.num_clients, dtype=torch.bool)
        return {
            "grid": torch.from_numpy(binning.fixed_grid(num_features)),
            "best": torch.tensor([torch.inf, 0.0], dtype=torch.float64),
            "gain": torch.zeros_like(params["value"][0]),
            "parents": NO_PARENTS,
            "replied": nobody,
            "members": nobody.clone(),
            "changed": torch.zeros(2, dtype=torch.bool),
            "held": torch.full((task.info.num_clients,), NOTHING),
        }

    def select_clients(self, server: Server) -> tuple[Tensor, State]:
        """Draw one cohort per tree; everybody grows own trees."""
        progress = server.params["progress"]
        if int(progress[STAGE]) >= interface.OWN_TREES:
            return torch.arange(server.task.info.num_clients), server.state
        tree = int(progress[TREE]) + 1
        ids = rng.sample_cohort(
            server.seed, tree, server.task.info.num_clients, server.participation
        )
        return torch.from_numpy(ids), server.state

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send the trees that a client lacks, and the grid while bins are agreed on."""
        message, state = super().distribute(server, ids)
        stage = int(server.params["progress"][STAGE])
        num_trees = int(server.params["progress"][TREE])
        last = min(num_trees + (stage == interface.GROW), len(server.params["value"]))
        held = state["held"][ids]
        first = held.clamp(0, num_trees)
        sent_rows = dict.fromkeys(TREE_NAMES, torch.stack([first, torch.full_like(first, last)], 1))
        num_columns = len(server.params["edges"])
        first = torch.where(held >= 0, num_columns, 0)
        sent_rows["edges"] = torch.stack([first, torch.full_like(first, num_columns)], 1)
        # Who does not reply may have lost everything.
        state = {**state, "held": state["held"].index_fill(0, ids, NOTHING)}
        broadcast: State = {}
        if stage in interface.BIN_STAGES:
            message = replace(message, params={**message.params, "limits": self._limits(server)})
            broadcast["grid"] = state["grid"]
        if stage < interface.OWN_TREES:
            broadcast[GROWING] = torch.ones(1)
        return replace(message, broadcast=broadcast, sent_rows=sent_rows), state

    def _limits(self, server: Server) -> Tensor:
        """Return the largest gradient and hessian of a row, and the rows of the largest client."""
        boosting = require_trees(self, server.task).boosting
        everybody = torch.arange(server.task.info.num_clients)
        most = float(server.task.num_examples(everybody).max())
        return torch.tensor([boosting.max_gradient, boosting.max_hessian, most]).double()

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Return equal weights, which sums ignore; note who replied."""
        replied = torch.zeros_like(server.state["replied"])
        replied[ids] = True
        stage, num_trees = server.params["progress"][[STAGE, TREE]].long().tolist()
        has = num_trees if stage >= interface.GROW else NOTHING
        held = torch.where(replied, has, server.state["held"])
        return equal_weights(ids), {**server.state, "replied": replied, "held": held}

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        """Sum what clients sent; sums of gradients are whole numbers of units before."""
        totals: State = {
            name: value.sum(0) for name, value in updates.extra.items() if name != "sums"
        }
        if "sums" in updates.extra:
            unit = sums_unit(max_sum(global_params["limits"]))
            totals["sums"] = _added(updates.extra["sums"], unit)
        return totals

    def check_updates(
        self, message: ServerMessage, ids: Tensor, updates: ClientUpdate, memory: dict[str, Any]
    ) -> Mapping[int, str]:
        """Find counts and histograms that no rows can have, or not after those of earlier levels.

        Under secure aggregation nothing of a single client is seen, and nothing is checked.
        """
        sent = message.params
        extra = updates.extra
        found: dict[int, str] = {}
        max_gradient, max_hessian, max_rows = sent["limits"].tolist()
        if "val" in extra and max_rows:
            found |= impossible_losses(extra["val"].numpy(), max_rows)
        if "cells" in extra:
            found |= impossible_counts(extra["cells"].numpy(), max_rows)
        if "sums" not in extra:
            return found
        from equipoise.trees.boosting import tables_of

        unit = sums_unit(max_sum(sent["limits"]))
        limits = Limits(max_gradient / unit, max_hessian / unit, max_rows)
        edges = sent["edges"].numpy()
        num_categories = sent["num_categories"].numpy().astype(np.int64)
        offsets = binning.cell_offsets(edges, num_categories)
        sums = extra["sums"].numpy()
        wrong, totals = impossible_sums(sums, offsets, limits)
        tree = int(sent["progress"][TREE])
        grown = Trees.of_iteration(sent, tree)
        tables = tables_of(grown, edges[None], offsets[None], num_categories)
        asked = asked_nodes(sent["asked"].numpy())
        history = memory.setdefault("sums", SumsHistory())
        about = (ids.numpy(), tree, asked, tables)
        found |= {**history.contradictions(*about, offsets, totals), **wrong}
        history.add(ids.numpy(), asked, tables, sums)
        return found

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Choose bins, or split the open nodes, and go on to the next stage, tree or level."""
        task = require_trees(self, server.task)
        params = dict(server.params)
        progress = params["progress"].clone()
        params["progress"] = progress
        state = server.state
        stage = int(progress[STAGE])
        if stage in interface.BIN_STAGES:
            state = self._apply_counts(task, params, state, sums)
            params["limits"] = self._limits(server)
        elif stage == interface.GROW:
            state = self._apply_histograms(server, task, params, state, sums)
        elif stage == interface.OWN_TREES:
            progress[STAGE] = interface.DONE
        if server.round == server.num_rounds - 1:  # the last round is for own trees
            progress[STAGE] = interface.OWN_TREES
        server.logged["trees"] = int(progress[TREE])
        return params, state

    def _apply_counts(self, task: TreeTask, params: Params, state: State, sums: State) -> State:
        """Refine the grid, or choose the ends of bins."""
        grid = state["grid"].numpy()
        cells = sums["cells"].numpy()
        stage = int(params["progress"][STAGE])
        params["progress"][STAGE] += 1
        if stage + 1 < binning.NUM_STAGES:
            return {**state, "grid": torch.from_numpy(binning.refined_grid(grid, cells))}
        edges = binning.bin_edges(grid, cells, task.tree_options.tree_bins)
        params["edges"] = torch.from_numpy(edges)
        params["base"] = torch.from_numpy(task.boosting.base_margins(sums["target"].numpy()))
        return state

    def _apply_histograms(
        self, server: Server, task: TreeTask, params: Params, state: State, sums: State
    ) -> State:
        """Split the open nodes of a level."""
        from equipoise.trees.growth import Growth

        options = task.tree_options
        progress = params["progress"]
        tree = int(progress[TREE])
        level = int(progress[LEVEL])
        if level == 0 and options.tree_patience:
            state = {**state, "best": _updated_best(state["best"], sums["val"], tree)}
            best_tree = int(state["best"][1])
            if tree - best_tree >= options.tree_patience:
                _keep_trees(params, best_tree)
                return state
        growth = self._growth(state, params)
        is_same = bool((state["replied"] == state["members"]).all())
        changed = state["changed"].clone()
        changed[1] |= level > 0 and not is_same
        state = {**state, "members": state["replied"], "changed": changed}
        if growth.parents is not None and not is_same:
            return _stored(growth.without_parents(), params, state)
        columns = _columns(server.seed, tree, len(task.num_categories), options.column_sample)
        growth = _split(task, params, growth, sums["sums"], columns)
        if bool(changed.any()):
            growth = growth.without_parents()
        num_split = growth.asked.shape[2]
        progress[LEVEL] += 1
        if num_split == 0 or level + 1 == options.tree_depth:
            progress[TREE] += 1
            progress[LEVEL] = 0
            growth = Growth.root(1, *params["value"].shape[1:])
            state["changed"] = torch.stack([changed[1], torch.zeros_like(changed[1])])
        is_flat = num_split == 0 and level == 0 and options.column_sample == options.row_sample == 1
        if is_flat or int(progress[TREE]) == options.trees:
            progress[STAGE] = interface.OWN_TREES
        return _stored(growth, params, state)

    def _growth(self, state: State, params: Params) -> Growth:
        """Return what the level is grown from."""
        from equipoise.trees.growth import Growth

        parents = state["parents"][None].numpy() if state["parents"].dim() == 4 else None
        asked = asked_nodes(params["asked"].numpy())[None]
        return Growth(asked, parents, state["gain"][None].numpy())

    def ends_after(self, server: Server) -> bool:
        """Return whether this is the round of own trees."""
        return int(server.params["progress"][STAGE]) >= interface.OWN_TREES

    def should_stop(self, server: Server) -> str | None:
        """Stop when all trees are grown."""
        if int(server.params["progress"][STAGE]) < interface.DONE:
            return None
        return f"{int(server.params['progress'][TREE])} trees are grown"


def _split(
    task: TreeTask, params: Params, growth: Growth, sums: Tensor, may_split: Flags
) -> Growth:
    """Split the open nodes of the growing tree, which is replaced in `params`."""
    from equipoise.trees.growth import split_level

    tree = int(params["progress"][TREE])
    grown = Trees.of_iteration(params, tree).copy()
    edges = params["edges"].numpy()
    offsets = binning.cell_offsets(edges, task.num_categories)
    next_level = split_level(
        grown,
        growth,
        sums.numpy()[None],
        edges[None],
        offsets[None],
        task.num_categories,
        may_split,
        task.tree_options,
    )
    for name, value in grown.params().items():
        params[name] = params[name].clone()
        params[name][tree] = value[0]
    return next_level


def _added(sums: Tensor, unit: float) -> Tensor:
    """Add the sums of clients `[K, ..., 3]`, exactly, and convert them from units."""
    if len(sums) == 1:  # also one client of many, under torch.vmap
        return sums[0].long() * torch.tensor([unit, unit, 1.0], dtype=torch.float64)
    from equipoise.trees.histograms import add_clients

    total = add_clients(sums.reshape(len(sums), -1).numpy(), unit)
    return torch.from_numpy(total).reshape(sums.shape[1:])


def _stored(growth: Growth, params: Params, state: State) -> State:
    """Store what the next level is grown from: in the model what clients need of it."""
    asked = torch.full_like(params["asked"], NO_NODE)
    asked[:, : growth.asked.shape[2]] = torch.from_numpy(growth.asked[0])
    params["asked"] = asked
    parents = NO_PARENTS
    if growth.parents is not None:
        parents = torch.from_numpy(growth.parents[0])
    return {**state, "gain": torch.from_numpy(growth.gain[0]), "parents": parents}


def _updated_best(best: Tensor, val: Tensor, tree: int) -> Tensor:
    """Return the lowest mean validation loss and its number of trees."""
    loss = val[0] / val[1].clamp(min=1.0)
    if float(val[1]) > 0 and loss >= best[0]:
        return best
    return torch.stack([loss, torch.tensor(float(tree), dtype=torch.float64)])


def _keep_trees(params: Params, num_trees: int) -> None:
    """Drop the trees after the best ones; own trees are next."""
    trees = Trees.from_params({name: value[None] for name, value in params.items()})
    kept = trees.cleared_after(np.array([num_trees]))
    params |= {name: value[0] for name, value in kept.params().items()}
    params["progress"][STAGE] = interface.OWN_TREES
    params["progress"][TREE] = num_trees


def _columns(seed: int, tree: int, num_features: int, share: float) -> Flags:
    """Draw the columns that a tree may split, at least one `[F]`."""
    if share >= 1:
        return np.ones(num_features, np.bool_)
    draws = rng.uniform(rng.keys(seed, np.array([-1]), tree, rng.TREES[1]), num_features)[0]
    count = max(1, rng.round_half_up(share * num_features))
    allowed = np.zeros(num_features, np.bool_)
    allowed[np.argsort(draws, kind="stable")[:count]] = True
    return allowed
