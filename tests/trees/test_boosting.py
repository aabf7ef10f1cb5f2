"""Boosting by hand: bins, one split, closed-form leaves, missing values, categories, sums."""

import numpy as np
import pytest

pytest.importorskip("numba")

from equipoise.data.transforms import MISSING_INPUT
from equipoise.trees import binning, personal
from equipoise.trees.arrays import ClientSpans
from equipoise.trees.boosting import BoostingState, Rows, boost
from equipoise.trees.config import TreeOptions
from equipoise.trees.ensemble import Trees, category_words
from equipoise.trees.histograms import add_trees, bin_rows, find_splits
from equipoise.trees.objectives import (
    QUANTUM,
    ClassificationBoosting,
    RegressionBoosting,
    SurvivalBoosting,
    cox_gradients,
    quantise,
)

NUMBERS = np.zeros(1, np.int64)


def rows_of_clients(x, y, sizes):
    sizes = np.asarray(sizes)
    return Rows(np.asarray(x, np.float32), np.asarray(y), np.cumsum(sizes) - sizes, sizes)


def grow(objective, options, rows, num_categories=None, edges=None, model=None, base=None):
    """Grow one model of all rows; return the result and the margins of the rows."""
    if num_categories is None:
        num_categories = np.zeros(rows.x.shape[1], np.int64)
    if edges is None:
        edges = personal.common_edges(rows, options.tree_bins)[None]
    if model is None:
        model = np.zeros(len(rows.start), np.int64)
    if base is None:
        sums = sum(
            objective.target_sums(rows.y[first : first + size])
            for first, size in zip(rows.start, rows.size, strict=True)
        )
        base = objective.base_margins(sums)
    margins = np.repeat(base[:, None], len(rows.x), axis=1)
    grown = boost(objective, options, options.trees, num_categories, edges, model, rows, margins)
    return grown, margins


def test_two_rows_and_one_split():
    """Squared error: the mean 0 is the base; leaves are shrinkage * residual / (1 + l2)."""
    options = TreeOptions(trees=1, tree_depth=1, leaf_rows=1, leaf_l2=1.0, shrinkage=0.5)
    rows = rows_of_clients([[1.0], [2.0]], [-1.0, 1.0], [2])
    grown, margins = grow(RegressionBoosting(0.0, 1.0), options, rows)
    tree = grown.trees.iteration(0)
    assert tree.feature[0, 0].tolist() == [0.0, -1.0, -1.0]
    assert tree.left[0, 0].tolist() == [1.0, 0.0, 0.0]
    assert 1.0 <= tree.threshold[0, 0, 0] < 2.0
    assert tree.value[0, 0].tolist() == [0.0, -0.25, 0.25]
    assert margins.tolist() == [[-0.25, 0.25]]


def test_logistic_leaves_have_their_closed_form():
    """Log odds of 2 in 4 are 0: gradients are -+1/2, hessians 1/4, leaves -G / (H + l2)."""
    options = TreeOptions(trees=1, tree_depth=1, leaf_rows=1, leaf_l2=0.5, shrinkage=1.0)
    rows = rows_of_clients([[0.0], [0.0], [3.0], [3.0]], [0, 0, 1, 1], [4])
    grown, _ = grow(ClassificationBoosting(2), options, rows)
    assert grown.trees.value[0, 0, 0] == pytest.approx([0.0, -1.0, 1.0], abs=1e-12)


def test_multiclass_grows_one_tree_per_class():
    """With equal classes p = 1/3: G of a class's own rows is n (1/3 - 1), H is n 2/9."""
    options = TreeOptions(trees=1, tree_depth=2, leaf_rows=1, leaf_l2=0.0, shrinkage=1.0)
    rows = rows_of_clients(
        [[0.0]] * 3 + [[1.0]] * 3 + [[2.0]] * 3, [0] * 3 + [1] * 3 + [2] * 3, [9]
    )
    objective = ClassificationBoosting(3)
    _, margins = grow(objective, options, rows)
    own = (2 / 3) / (2 / 9) + np.log(1 / 3)
    other = -(1 / 3) / (2 / 9) + np.log(1 / 3)
    expected = np.full((3, 9), other)
    for c in range(3):
        expected[c, 3 * c : 3 * c + 3] = own
    np.testing.assert_allclose(margins, expected, atol=1e-5)
    assert (objective.outputs(margins).argmax(1) == rows.y).all()


def test_missing_values_take_the_better_side():
    x = [[0.0], [1.0], [MISSING_INPUT], [MISSING_INPUT]]
    options = TreeOptions(trees=1, tree_depth=1, leaf_rows=1, leaf_l2=0.0, shrinkage=1.0)
    for y in ([-1.0, 3.0, -1.0, -1.0], [-3.0, 1.0, 1.0, 1.0]):
        rows = rows_of_clients(x, y, [4])
        grown, margins = grow(RegressionBoosting(0.0, 1.0), options, rows)
        assert grown.trees.missing_left[0, 0, 0, 0] == float(y[2] == y[0])
        np.testing.assert_allclose(margins[0], y, atol=1e-5)


def test_missing_against_all_numbers_is_a_split():
    rows = rows_of_clients([[0.0], [1.0], [MISSING_INPUT]], [1.0, 1.0, -2.0], [3])
    options = TreeOptions(trees=1, tree_depth=1, leaf_rows=1, leaf_l2=0.0, shrinkage=1.0)
    _, margins = grow(RegressionBoosting(0.0, 1.0), options, rows)
    np.testing.assert_allclose(margins[0], [1.0, 1.0, -2.0], atol=1e-5)


@pytest.mark.parametrize(
    ("num_categories", "rows_left", "gain"),
    [
        # G = 40 and -40, H = 40 and 60: G^2 / H of both children.
        (4, 40, 40**2 / 40 + 40**2 / 60),
        # A fifth code, which no row has: the same split has too few rows on its left.
        (5, 40, 0.0),
        # From 100 rows on it counts again, with 100 more in both denominators.
        (5, 100, 100**2 / 200 + 100**2 / 250),
    ],
)
def test_splits_of_many_categories_need_more_evidence(num_categories, rows_left, gain):
    rows_right = 3 * rows_left // 2
    cells = np.zeros((num_categories + 1, 3))
    cells[0] = rows_left, rows_left, rows_left
    cells[1] = -rows_left, rows_right, rows_right
    found = find_splits(
        cells[None, None],
        np.zeros((0, 0, 0, 0)),
        np.zeros(1, np.int64),
        np.array([[0, num_categories + 1]]),
        np.ones(1, np.bool_),
        np.array([num_categories]),
        1.0,
        0.0,
        1,
    )
    assert found[0][0] == pytest.approx(gain)


def test_categories_are_split_into_sets():
    """Codes 0 and 40 against 1 and 33: no threshold separates them, one set does."""
    codes = np.array([0, 40, 1, 33] * 50, np.float32)
    y = np.where((codes == 0) | (codes == 40), -1.0, 1.0)
    rows = rows_of_clients(codes[:, None], y, [200])
    categories = np.array([41])
    options = TreeOptions(trees=1, tree_depth=1, leaf_rows=1, leaf_l2=0.0, shrinkage=1.0)
    grown, margins = grow(RegressionBoosting(0.0, 1.0), options, rows, categories)
    np.testing.assert_allclose(margins[0], y, atol=1e-5)
    assert category_words(categories) == 2
    # The lowest gradients, those of targets 1, go left: bit 1 of both words.
    assert grown.trees.categories[0, 0, 0, 0].tolist() == [2.0, 2.0]
    new = np.array([[7.0], [MISSING_INPUT], [99.0]], np.float32)
    scores = np.zeros((1, 3))
    zero = np.zeros(1, np.int64)
    everything = ClientSpans.of_one_model(zero, np.array([3]))
    add_trees(new, everything, zero, 1, grown.trees, scores)
    assert scores[0, 0] == pytest.approx(-1.0, abs=1e-5)  # not in the set of the left
    assert scores[0, 1] == scores[0, 2]  # codes beyond all known are missing


def test_leaves_have_enough_rows_and_gain():
    sums = np.zeros((1, 1, 4, 3))
    sums[0, 0, :3] = [[-1.0, 1.0, 1], [1.0, 1.0, 5], [1.0, 1.0, 5]]
    all_features = np.ones(1, np.bool_)
    no_parents = np.zeros((0, 0, 0, 0))
    cells = (sums, no_parents, NUMBERS, np.array([[0, 4]]))
    gain, feature, last_bin, *_ = find_splits(*cells, all_features, NUMBERS, 1.0, 0.0, 0)
    assert (feature[0], last_bin[0]) == (0, 0)
    assert gain[0] == pytest.approx(1.0 + 2.0 - 1.0 / 3.0)
    _, feature, last_bin, *_ = find_splits(*cells, all_features, NUMBERS, 5.0, 0.0, 0)
    assert (feature[0], last_bin[0]) == (0, 1)
    assert find_splits(*cells, all_features, NUMBERS, 6.0, 0.0, 0)[1][0] == -1
    assert find_splits(*cells, ~all_features, NUMBERS, 1.0, 0.0, 0)[1][0] == -1


def test_siblings_have_the_sums_of_their_parents_minus_their_own():
    sums = np.zeros((1, 1, 4, 3))
    sums[0, 0, :3] = [[5.0, 1.0, 4], [7.0, 1.0, 2], [2.0, 1.0, 3]]
    sibling = np.array([[-1.0, 1.0, 1], [1.0, 1.0, 5], [1.0, 1.0, 5], [0.0, 0.0, 0]])
    rest = (np.array([[0, 4]]), np.ones(1, np.bool_), NUMBERS, 1.0, 0.0, 0)
    both = find_splits(sums, sums + sibling, np.zeros(2, np.int64), *rest)
    alone = find_splits(sibling[None, None], np.zeros((0, 0, 0, 0)), np.zeros(1, np.int64), *rest)
    for of_both, of_one in zip(both, alone, strict=True):
        np.testing.assert_array_equal(of_both[1:], of_one)


def test_cox_gradients_are_those_of_autograd():
    torch = pytest.importorskip("torch")
    from equipoise.data.federated_dataset import Target
    from equipoise.training.objectives import SurvivalObjective

    random = np.random.default_rng(0)
    time = random.integers(1, 8, 30).astype(np.float64)  # with ties
    event = random.integers(0, 2, 30).astype(np.float64)
    risk = random.normal(size=30)
    y = torch.from_numpy(np.stack([time, event], 1))
    h = torch.from_numpy(risk).requires_grad_()
    loss = SurvivalObjective(Target("survival")).losses(h[:, None], y).sum()
    (expected,) = torch.autograd.grad(loss, h, create_graph=True)
    second = [torch.autograd.grad(expected[i], h, retain_graph=True)[0][i] for i in range(30)]
    gradient, hessian = cox_gradients(time, event, risk)
    np.testing.assert_allclose(gradient, expected.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(hessian, torch.stack(second).numpy(), atol=1e-12)
    losses = SurvivalBoosting().losses(
        np.stack([time, event], 1), risk[None], np.array([0]), np.array([30])
    )
    assert losses.sum() == pytest.approx(float(loss.detach()), abs=1e-10)


@pytest.mark.parametrize("absolute", [False, True])
def test_regression_gradients_are_derivatives(absolute):
    objective = RegressionBoosting(2.0, 4.0, absolute)
    y = np.array([1.0, 3.0, 10.0])
    margins = np.array([[0.3, -1.0, 0.5]])
    everything = np.array([0]), np.array([3])
    gradient, hessian = (QUANTUM * units for units in objective.gradients(y, margins, *everything))
    residual = margins[0] - (y - 2.0) / 4.0
    if absolute:
        curve = np.sqrt(1 + residual**2)
        np.testing.assert_allclose(gradient[0], residual / curve, atol=QUANTUM)
        np.testing.assert_allclose(hessian[0], curve**-3, atol=QUANTUM)
    else:
        np.testing.assert_allclose(gradient[0], residual, atol=QUANTUM)
        assert (hessian == 1).all()


def test_quantised_sums_do_not_depend_on_their_order():
    values = quantise(np.random.default_rng(0).normal(size=10_000) * 30)
    assert values.sum() == values[::-1].sum() == sum(np.sort(values).tolist())
    assert np.abs(quantise(np.array([1e9, -1e9]))).tolist() == [64.0, 64.0]


# --- bins


def test_bins_of_few_values_separate_them_all():
    x = np.repeat(np.array([-2.0, 0.1, 0.11, 5.0, 1234.5], np.float32), 7)[:, None]
    rows = rows_of_clients(x, np.zeros(35), [20, 15])
    edges = personal.common_edges(rows, 10)
    offsets = binning.cell_offsets(edges, NUMBERS)
    bins = bin_rows(x, edges, NUMBERS, offsets)[:, 0]
    assert bins[::7].tolist() == [0, 1, 2, 3, 4]
    assert offsets.tolist() == [0, 6]  # and one bin of missing values
    assert (np.diff(edges[0]) >= 0).all()


def test_bins_hold_nearly_equal_numbers_of_rows():
    x = np.random.default_rng(0).lognormal(size=(20_000, 1)).astype(np.float32)
    edges = personal.common_edges(rows_of_clients(x, np.zeros(20_000), [20_000]), 50)
    offsets = binning.cell_offsets(edges, NUMBERS)
    counts = np.bincount(bin_rows(x, edges, NUMBERS, offsets)[:, 0], minlength=50)
    assert counts.min() > 200
    assert counts.max() < 700


def test_counts_of_clients_add_up_to_those_of_all_rows():
    x = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    x[:10, 1] = MISSING_INPUT
    grid = binning.fixed_grid(2)
    parts = binning.count_cells(x[:100], grid) + binning.count_cells(x[100:], grid)
    assert (parts == binning.count_cells(x, grid)).all()
    assert parts.sum(1).tolist() == [300.0, 290.0]


def test_a_column_without_values_has_one_bin():
    x = np.full((5, 1), MISSING_INPUT, np.float32)
    edges = personal.common_edges(rows_of_clients(x, np.zeros(5), [5]), 4)
    offsets = binning.cell_offsets(edges, NUMBERS)
    assert offsets.tolist() == [0, 3]
    assert bin_rows(x, edges, NUMBERS, offsets)[:, 0].tolist() == [2] * 5


# --- sums of clients


def make_rows(kind, sizes=(40, 150, 10, 100)):
    random = np.random.default_rng(1)
    n = sum(sizes)
    x = random.normal(size=(n, 4)).astype(np.float32)
    x[:, 2] = random.integers(0, 35, n)
    x[random.random((n, 4)) < 0.1] = MISSING_INPUT
    score = x[:, 0].clip(-3) - np.where(x[:, 2] % 3 == 0, 1.0, 0.0) + random.normal(size=n)
    if kind == "regression":
        return rows_of_clients(x, score, sizes), RegressionBoosting(0.0, 2.0)
    classes = np.digitize(score, [-0.5, 0.5]) if kind == "multiclass" else (score > 0)
    return rows_of_clients(x, classes.astype(np.int64), sizes), ClassificationBoosting(
        3 if kind == "multiclass" else 2
    )


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_sums_of_clients_grow_the_pooled_ensemble(kind):
    rows, objective = make_rows(kind)
    categories = np.array([0, 0, 35, 0])
    options = TreeOptions(trees=10, tree_depth=3, tree_bins=63, leaf_rows=5)
    federated, _ = grow(objective, options, rows, categories)
    pooled_rows = rows._replace(start=np.array([0]), size=np.array([len(rows.x)]))
    pooled, _ = grow(objective, options, pooled_rows, categories)
    for mine, theirs in zip(federated.trees, pooled.trees, strict=True):
        assert (mine == theirs).all()
    assert (federated.trees.feature >= 0).sum() > 20


def leaf_by_leaf(x, g, h, rows, leaves, min_rows):
    """Grow one tree on numbers, always splitting the leaf with the largest gain."""

    def best(part):
        found = (0.0, None)
        own = g[part].sum() ** 2 / h[part].sum()
        for f in range(x.shape[1]):
            for cut in np.unique(x[part, f])[:-1]:
                left = part[x[part, f] <= cut]
                right = part[x[part, f] > cut]
                if min(len(left), len(right)) >= min_rows:
                    sides = sum(g[s].sum() ** 2 / h[s].sum() for s in (left, right))
                    found = max(found, (sides - own, (left, right)), key=lambda pair: pair[0])
        return found

    open_leaves = [(best(rows), rows)]
    while len(open_leaves) < leaves:
        (gain, sides), _ = taken = max(open_leaves, key=lambda leaf: leaf[0][0])
        if gain <= 0:
            break
        open_leaves = [leaf for leaf in open_leaves if leaf is not taken]
        open_leaves += [(best(side), side) for side in sides]
    return [part for _, part in open_leaves]


@pytest.mark.parametrize("leaves", [2, 5, 9])
def test_level_by_level_ends_as_leaf_by_leaf(leaves):
    """A tree of few leaves goes deep where the gain is, and one level is one exchange."""
    random = np.random.default_rng(leaves)
    x = random.integers(0, 12, (300, 2)).astype(np.float32)
    y = np.exp(x[:, 0] / 3) + 2 * (x[:, 1] > 6) * (x[:, 0] > 9) + random.normal(size=300)
    y = (y - y.mean()) / y.std()
    options = TreeOptions(
        trees=1, tree_depth=8, tree_leaves=leaves, leaf_rows=5, leaf_l2=0.0, shrinkage=1.0
    )
    rows = rows_of_clients(x, y, [100, 150, 50])
    grown, margins = grow(RegressionBoosting(0.0, 1.0), options, rows, base=np.zeros(1))
    expected = leaf_by_leaf(x, -y, np.ones(300), np.arange(300), leaves, 5)
    assert len(expected) == leaves == (grown.trees.feature >= 0).sum() + 1
    for part in expected:
        np.testing.assert_allclose(margins[0, part], y[part].mean(), atol=1e-5)


def test_a_state_that_is_lost_gives_the_same_sums():
    """Margins, gradients and nodes follow from the rows and the model alone."""
    rows, objective = make_rows("multiclass")
    categories = np.array([0, 0, 35, 0])
    options = TreeOptions(trees=4, tree_depth=3, tree_bins=63, leaf_rows=5)
    edges = personal.common_edges(rows, 63)
    trees = grow(objective, options, rows, categories, edges[None])[0].trees
    base = objective.base_margins(objective.target_sums(rows.y))
    kept = BoostingState(rows.x, rows.y, objective, categories, 3)
    clients = (rows.start, rows.size)

    def lost():
        return BoostingState(rows.x, rows.y, objective, categories, 3)

    for tree in range(4):
        for level, asked in enumerate([[[0]] * 3, [[1], [2], [1]], [[3, 5], [4, 5], [6, -1]]]):
            arguments = (trees, base, tree, level, np.array(asked), edges)
            fresh = lost().histograms(*arguments, clients)
            assert (kept.histograms(*arguments, clients) == fresh).all()
            some = (rows.start[[1, 3]], rows.size[[1, 3]])
            assert (kept.histograms(*arguments, some) == fresh[[1, 3]]).all()
    # Another ensemble, and an earlier state of the same one.
    other = trees._replace(value=trees.value * 2)
    roots = np.zeros((3, 1), np.int64)
    for arguments in ((other, base, 2, 1), (trees, base, 1, 0), (trees, base + 1, 1, 0)):
        more = (*arguments, roots + arguments[3], edges, clients)
        assert (kept.histograms(*more) == lost().histograms(*more)).all()


def test_models_side_by_side_are_those_grown_alone():
    rows, objective = make_rows("binary", (80, 120, 100))
    categories = np.array([0, 0, 35, 0])
    options = TreeOptions(trees=5, tree_depth=3, tree_bins=63, leaf_rows=5)
    edges = personal.local_edges(rows, 63)
    base = np.zeros(1)
    together, _ = grow(objective, options, rows, categories, edges, np.arange(3), base)
    for k in range(3):
        own = rows._replace(start=rows.start[k : k + 1], size=rows.size[k : k + 1])
        alone, _ = grow(objective, options, own, categories, edges[k : k + 1], None, base)
        for mine, theirs in zip(together.trees, alone.trees, strict=True):
            assert (mine[k] == theirs[0]).all()


def test_cleared_trees_add_nothing():
    rows, objective = make_rows("binary")
    options = TreeOptions(trees=3, tree_depth=2, tree_bins=63, leaf_rows=5)
    trees = grow(objective, options, rows, np.array([0, 0, 35, 0]))[0].trees
    short = trees.cleared_after(np.array([1]))
    assert short.has_prefix(trees, 1)
    assert not short.has_prefix(trees, 2)
    margins = np.zeros((1, len(rows.x)))
    both = np.zeros((1, len(rows.x)))
    zero = np.zeros(1, np.int64)
    everything = ClientSpans.of_one_model(zero, np.array([len(rows.x)]))
    add_trees(rows.x, everything, zero, 3, short, margins)
    add_trees(rows.x, everything, zero, 1, trees, both)
    assert (margins == both).all()
    assert isinstance(short, Trees)


# --- trees of single clients


def test_a_client_without_evidence_keeps_the_common_model():
    """Targets that no column explains: validation never improves by three standard errors."""
    random = np.random.default_rng(0)
    rows = rows_of_clients(random.normal(size=(400, 3)), random.integers(0, 2, 400), [200, 200])
    val = rows_of_clients(random.normal(size=(200, 3)), random.integers(0, 2, 200), [100, 100])
    clients = personal.ClientRows(rows, np.zeros((1, 400)), val, np.zeros((1, 200)))
    options = TreeOptions()
    edges = personal.common_edges(rows, options.tree_bins)
    arguments = (ClassificationBoosting(2), options, np.zeros(3, np.int64), edges)
    trees, count = personal.own_trees(*arguments, clients, 10, -1)
    assert count.tolist() == [0, 0]
    assert (trees.value == 0).all()
    assert personal.own_trees(*arguments, clients._replace(val=None), 10, -1)[1].tolist() == [0, 0]
    assert personal.own_trees(*arguments, clients, 10, 3)[1].tolist() == [3, 3]


def test_a_client_that_differs_adds_trees():
    """The second client's targets are the opposite of what the common margins say."""
    random = np.random.default_rng(0)
    x = random.normal(size=(800, 2))
    y = (x[:, 0] > 0).astype(np.int64)
    y[400:] = 1 - y[400:]
    rows = rows_of_clients(x[:800], y, [400, 400])
    margins = np.where(x[:, 0] > 0, 3.0, -3.0)[None]
    clients = personal.ClientRows(rows, margins, rows, margins.copy())
    options = TreeOptions()
    edges = personal.common_edges(rows, options.tree_bins)
    trees, count = personal.own_trees(
        ClassificationBoosting(2), options, np.zeros(2, np.int64), edges, clients, 20, -1
    )
    assert count[1] > 5
    assert margins[0, 0] in (3.0, -3.0)  # the given margins do not change
    after = margins.copy()
    spans = ClientSpans(rows.start, rows.size, np.arange(2))
    add_trees(rows.x, spans, np.zeros(2, np.int64), 20, trees, after)
    second = slice(400, 800)
    before_loss = np.logaddexp(0, -margins[0, second] * (2 * y[second] - 1)).mean()
    after_loss = np.logaddexp(0, -after[0, second] * (2 * y[second] - 1)).mean()
    assert after_loss < 0.5 * before_loss
