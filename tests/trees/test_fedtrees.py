"""Federated boosting from the command line to the model: equality, resume, processes, targets."""

import copy
import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("numba")
pytest.importorskip("pyarrow")

from equipoise.cli import main
from equipoise.cli.options import early_options
from equipoise.core import (
    ClientUpdate,
    LocalTrainRequest,
    RngContext,
    Server,
    ServerMessage,
    TrainingConfig,
)
from equipoise.data.tabular import tables_from_values
from equipoise.data.tabular.io import align_tables
from equipoise.data.transforms import MISSING_INPUT
from equipoise.experiment.model_files import read_model
from equipoise.flower.remote_executor import RemoteExecutor
from equipoise.methods.fedtrees import FedTrees
from equipoise.methods.local import Local
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.attacks import with_attack
from equipoise.simulation.executors import Stacked
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.tables import TableLearningConfig, task_from_tables
from equipoise.tasks.trees import TreesTask
from equipoise.trees import binning
from equipoise.trees.boosting import Rows, boost, tables_of
from equipoise.trees.ensemble import LEVEL, STAGE, TREE, Trees, asked_nodes, max_sum
from equipoise.trees.objectives import sums_unit
from equipoise.utils import serialization
from equipoise.utils.errors import UsageError
from equipoise.wrappers.robust_aggregation import with_robust_aggregation
from equipoise.wrappers.secure_aggregation import with_secure_aggregation
from flower.test_remote import Here
from helpers import largest_difference, timeless

SIZES = {"north": 150, "south": 90, "east": 120, "west": 60}
KINDS = {
    "binary": {"target": "ill", "ignore_columns": "cost,stage,days,died"},
    "multiclass": {"target": "stage", "ignore_columns": "cost,ill,days,died"},
    "regression": {
        "target": "cost",
        "target_type": "regression",
        "ignore_columns": "ill,stage,days,died",
    },
    "survival": {"target": "days", "event": "died", "ignore_columns": "ill,stage,cost"},
}
SMALL = {"trees": 4, "tree_depth": 3, "tree_bins": 31, "leaf_rows": 5}


def clinics() -> dict[str, dict[str, object]]:
    """Sites with numbers, a category of four values and missing cells."""
    random = np.random.default_rng(0)
    tables: dict[str, dict[str, object]] = {}
    for site, n in SIZES.items():
        age = random.normal(50, 15, n).round(1)
        ward = random.choice(list("abcdbc"), n)
        score = (age - 50) / 15 + (ward == "b") * 1.5 + random.normal(size=n)
        shown = age.copy()
        shown[random.random(n) < 0.15] = np.nan
        tables[site] = {
            "age": shown,
            "ward": ward,
            "blood": random.normal(5, 1, n),
            "ill": np.where(score > 0.5, "yes", "no"),
            "stage": np.digitize(score, [0, 1.5]).astype(str),
            "cost": 100 * score + 1000,
            "days": np.exp(-score + random.normal(size=n)) * 100,
            "died": (random.random(n) < 0.7).astype(float),
        }
    return tables


def make_task(kind: str = "binary", **more: object) -> TreesTask:
    options = TableLearningConfig(**{**SMALL, **KINDS[kind], **more})
    tables = align_tables(tables_from_values(clinics()), options)
    task = task_from_tables("tables", tables, options, "trees", TrainingConfig(), 0)
    assert isinstance(task, TreesTask)
    return task


def simulation(task, method=None, executor="stacked", participation=1.0, keep=True):
    method = method or FedTrees()
    rounds = method.num_rounds(1, task.tree_options)
    schedule = RoundLoopConfig(rounds, 0, participation, executor, 4, keep)
    return FederatedSimulation(method, task, task.info.training, schedule)


def run(simulated: FederatedSimulation):
    logs = []
    while not logs or (logs[-1].stop is None and logs[-1].round < simulated.schedule.num_rounds):
        logs.append(simulated.run_round())
    return logs


@pytest.mark.parametrize("kind", KINDS)
def test_the_federated_ensemble_is_the_pooled_one(kind):
    """With the same bins: the same splits, and leaves to 1e-9 (here: to the bit)."""
    task = make_task(kind, tree_patience=0)
    simulated = simulation(task)
    run(simulated)
    params = simulated.params
    own = task.data.split(np.arange(task.info.num_clients), "train")
    everybody = np.array([0]), np.array([len(own.x)])
    if kind == "survival":  # risk sets are those of clients, in one place as well
        everybody = own.start, own.size
    y = own.y.numpy() if not own.y.is_floating_point() else own.y.double().numpy()
    rows = Rows(own.x.numpy(), y, *everybody)
    margins = np.repeat(params["base"].numpy()[:, None], len(own.x), 1)
    pooled = boost(
        task.boosting,
        task.tree_options,
        task.tree_options.trees,
        task.num_categories,
        params["edges"].numpy()[None],
        np.zeros(len(rows.start), np.int64),
        rows,
        margins,
        unit=sums_unit(max_sum(params["limits"])),
    )
    found = Trees.from_params({name: value[None] for name, value in params.items()})
    for mine, theirs in zip(found.arrays, pooled.trees.arrays, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (found.feature >= 0).sum() > 8
    outputs = task.forward(params, own.x)
    np.testing.assert_allclose(outputs[:, -1].numpy(), margins[-1], atol=1e-12)


def test_executors_processes_of_evaluation_and_cohorts_agree():
    """One client after another gives the bits of all at once."""
    for participation in (1.0, 0.5):
        stacked = simulation(make_task(), participation=participation)
        loop = simulation(make_task(), executor="loop", participation=participation)
        for one, other in zip(run(stacked), run(loop), strict=True):
            assert timeless(one) == timeless(other)
        assert largest_difference(stacked.state_dict(), loop.state_dict()) == 0


@pytest.mark.parametrize("more", [{}, {"row_sample": 0.6, "column_sample": 0.5}])
def test_a_run_that_is_saved_and_continued_is_the_same_run(tmp_path, more):
    whole = simulation(make_task(**more))
    logs = run(whole)
    task = make_task(**more)
    first = simulation(task)
    parts = [first.run_round() for _ in range(7)]
    serialization.save(tmp_path / "run.safetensors", first.state_dict(), {})
    second = simulation(make_task(**more))
    second.load_state_dict(serialization.load(tmp_path / "run.safetensors")[0], 7)
    parts += run(second)
    assert largest_difference(whole.state_dict(), second.state_dict()) == 0
    for one, other in zip(logs, parts, strict=True):
        assert timeless(one) == timeless(other)


def one_round(task, method, params, state, round, ids):
    """Apply the sums of some clients; return the new model and state."""
    server = Server(task, task.info.training, params, state, 0, round, 100)
    stack = {name: value.expand(len(ids), *value.shape) for name, value in params.items()}
    aux = {"statistics": torch.ones(len(ids))}
    if "grid" in state and int(params["progress"][STAGE]) < 2:
        aux["grid"] = state["grid"].expand(len(ids), *state["grid"].shape)
    request = LocalTrainRequest(stack, ids, ids, aux=aux)
    found = task.fit_stack(ids, request, {}, RngContext(0, round, task.info.training))[0]
    weights, server.state = method.aggregation_weights(server, ids, ClientUpdate({}))
    return method.aggregate(server, ids, ClientUpdate({}, found), weights)


def test_sums_of_siblings_do_not_mix_clients():
    """If others reply than at the level above, both children are asked for anew."""
    task = make_task(tree_patience=0)
    method = FedTrees()
    everybody = torch.arange(4)
    states = {}
    for lost in (None, 5, 6):  # when client 1 is away: at the last level, at the next root
        params = task.init_params(0)
        state = method.init_server(task, params)
        steps = []
        for round in range(1, 12):
            ids = everybody[everybody != 1] if round == lost else everybody
            params, state = one_round(task, method, params, state, round, ids)
            asked = int((params["asked"] >= 0).sum())
            steps.append((int(params["progress"][LEVEL]), asked))
        states[lost] = params, steps
    whole, steps = states[None]
    assert steps[2:5] == [(1, 1), (2, 2), (0, 1)]
    again, more = states[5]
    assert more[4] == (2, 4)  # round 5 is dropped, all four nodes of the level are asked for
    assert more[5] == (0, 1)
    assert more[6] == (1, 2)  # the next tree asks for everything from the start
    for name in ("feature", "threshold", "value"):
        assert torch.equal(again[name][0], whole[name][0])
    assert states[6][1][5] == (1, 1)  # a root has no sibling: the sums of three clients are used


def test_secure_sums_are_exact():
    plain = simulation(make_task())
    secure = simulation(make_task(), with_secure_aggregation(FedTrees(), True))
    run(plain)
    run(secure)
    assert largest_difference(plain.params, secure.params) == 0


def test_rows_and_columns_are_sampled_by_the_seed():
    task = make_task(row_sample=0.5)
    own = task.data.split(np.arange(4), "train")
    once = task._sample(np.arange(4), own, 3, 0).copy()
    some = task._sample(np.array([1, 3]), task.data.split(np.array([1, 3]), "train"), 3, 0)
    for k in (1, 3):  # a client's draw does not depend on the cohort
        mine = slice(own.start[k], own.start[k] + own.size[k])
        assert (once[mine] == some[mine]).all()
    assert 0.3 < once.mean() < 0.7
    assert (once != task._sample(np.arange(4), own, 4, 0)).any()
    full, half = (simulation(make_task(column_sample=share)) for share in (1.0, 0.34))
    run(full)
    run(half)
    used = [set(half.params["feature"][tree].unique().tolist()) - {-1.0} for tree in range(4)]
    assert all(len(columns) <= 1 for columns in used)
    assert len(set(full.params["feature"].unique().tolist()) - {-1.0}) > 1


def test_early_stopping_drops_trees_after_the_best():
    task = make_task(trees=60, tree_patience=3, shrinkage=1.0)
    simulated = simulation(task)
    logs = run(simulated)
    kept = int(simulated.params["progress"][TREE])
    assert kept < 57
    assert bool((simulated.params["feature"][kept:] == -1).all())
    assert not bool(simulated.params["value"][kept:].any())
    assert len(logs) <= 2 + 3 * (kept + 3) + 2
    assert f"{kept} trees" in logs[-1].stop
    assert logs[-1].test is not None  # the last round is scored, wherever it falls


def test_local_boosting_uses_own_rows_alone():
    task = make_task()
    schedule = RoundLoopConfig(2, 0, 1.0, "stacked", 1, True)
    simulated = FederatedSimulation(Local(), task, task.info.training, schedule)
    simulated.run_round()
    once = {name: value.clone() for name, value in simulated.store.local_params.items()}
    simulated.run_round()
    assert largest_difference(once, dict(simulated.store.local_params)) == 0
    alone = make_task().subset(np.array([2]))
    other = FederatedSimulation(Local(), alone, task.info.training, schedule)
    other.run_round()
    for name, value in other.store.local_params.items():
        assert torch.equal(value[0], once[name][2]), name


def test_scores_are_those_of_whole_predictions():
    """Margins that are added tree by tree give the scores of the whole model."""
    task = make_task("multiclass")
    simulated = simulation(task, FedTrees(personal_trees="2"))
    run(simulated)
    ids = torch.arange(4)
    params = simulated.params
    shared = {name: value.expand(4, *value.shape) for name, value in params.items()}
    found = task.evaluate_stack(ids, shared, "test")
    personal = task.evaluate_stack(ids, dict(simulated.store.local_params), "test")
    for k in range(4):
        own = task.data.split(np.array([k]), "test")
        rows = slice(int(own.start[0]), int(own.start[0] + own.size[0]))
        model = {name: value[k] for name, value in simulated.store.local_params.items()}
        for one, scores in ((params, found), (model, personal)):
            logits = task.forward(one, own.x[rows])
            accuracy = (logits.argmax(-1) == own.y[rows]).double().mean()
            assert scores["acc"][k] == accuracy
    assert simulated.store.local_params["own_count"].flatten().tolist() == [2.0] * 4
    x, y = task.data.server("test")
    whole = {name: value[None] for name, value in params.items()}
    accuracy = (task.forward(params, x).argmax(-1) == y).double().mean()
    assert task.evaluate_server(whole, "test")["acc"][0] == accuracy


def test_what_trees_cannot_do_is_refused():
    from equipoise.methods.fedavg import FedAvg

    task = make_task()
    with pytest.raises(UsageError, match="cannot be averaged"):
        task.check_method(FedAvg())
    task.check_method(Local())
    with pytest.raises(UsageError, match="personal_trees is 'many'"):
        FedTrees(personal_trees="many")
    with pytest.raises(UsageError, match="0 to 50"):
        FedTrees(personal_trees="51")
    with pytest.raises(UsageError, match="no network"):
        task.with_network("", "lora:4", "", 0)
    with pytest.raises(UsageError, match="tree_bins is 3"):
        make_task(tree_bins=3)
    for rule in ("median", "krum", "bound", "trust"):
        robust = with_robust_aggregation(FedTrees(), rule)
        with pytest.raises(UsageError, match="upload sums of gradients and no models"):
            robust.check(task, task.info.training)


# --- the command line


def write_sites(folder: Path) -> None:
    folder.mkdir()
    for site, columns in clinics().items():
        with (folder / f"{site}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            for row in zip(*columns.values(), strict=True):
                writer.writerow(["" if value != value else value for value in row])


def read_rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


def call(data: Path, out: Path, kind: str = "binary", *more: str) -> int:
    options = {"task": "tables", "data": data, "method": "fedtrees", **SMALL, **KINDS[kind]}
    options |= {"eval_every": 3, "out": out}
    words = [w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    return main(["run", *words, "--quiet", *more])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_predicts_and_reports(tmp_path, kind):
    data = tmp_path / "sites"
    out = tmp_path / "run"
    write_sites(data)
    assert call(data, out, kind, "--personal-trees", "1") == 0
    rows = read_rows(out / "clients.csv")
    assert [row["name"] for row in rows] == sorted(SIZES)
    assert (out / "report.html").stat().st_size > 10_000
    (tmp_path / "new.csv").write_text("age,ward,blood\n20,a,5\n90,b,5\n,zzz,5\n")
    for more in ([], ["--client", "1"]):
        table = tmp_path / f"predicted{len(more)}.csv"
        new = str(tmp_path / "new.csv")
        words = ["predict", str(out), new, *more, "--out", str(table)]
        assert main(words) == 0
        predicted = read_rows(table)
        assert len(predicted) == 3
        if kind == "binary":
            low, high = (float(row["p(yes)"]) for row in predicted[:2])
            assert low < 0.5 < high
    summary = json.loads((out / "summary.json").read_text())
    assert summary


def test_processes_give_the_bits_of_one(tmp_path):
    data = tmp_path / "sites"
    write_sites(data)
    lines = {}
    for processes in ("1", "2"):
        out = tmp_path / processes
        assert call(data, out, "binary", "--processes", processes) == 0
        lines[processes] = (out / "models" / "global.safetensors").read_bytes()
    assert lines["1"] == lines["2"]


def test_trees_without_a_method_are_grown_by_fedtrees(tmp_path):
    data = tmp_path / "sites"
    write_sites(data)
    given = {"task": "tables", "data": str(data), "target": "y", **SMALL}
    assert ExperimentConfig.from_options({**given, "model": "trees"}).method == FedTrees()
    assert ExperimentConfig.from_options(given).run.method == "fedavg"
    typed = early_options(["--data", str(data), "--model", "trees"])
    assert (typed["method"], early_options(["--data", str(data)])["method"]) == (
        "fedtrees",
        "fedavg",
    )


def test_a_network_with_fedtrees_is_refused(tmp_path, capsys):
    data = tmp_path / "sites"
    write_sites(data)
    assert call(data, tmp_path / "run", "binary", "--model", "mlp") == 2
    assert "--model trees" in capsys.readouterr().err


# --- what a server can check, and sites that are apart


def reply_at(simulated) -> tuple[ServerMessage, dict]:
    """Return what clients are sent next, and their honest replies."""
    task, sent = simulated.task, simulated.params
    ids = torch.arange(4)
    stack = {name: value.expand(4, *value.shape) for name, value in sent.items()}
    request = LocalTrainRequest(stack, ids, ids, aux={"statistics": torch.ones(4)})
    message = ServerMessage(sent, {})
    return message, task.fit_stack(ids, request, {}, RngContext(0, 5, task.info.training))[0]


def test_sums_that_no_rows_have_are_refused():
    simulated = simulation(make_task())
    for _ in range(4):
        simulated.run_round()
    method = FedTrees()
    ids = torch.arange(4)
    message, honest = reply_at(simulated)
    assert method.check_updates(message, ids, ClientUpdate({}, honest), {}) == {}
    reasons = {
        "below 0": lambda sums: sums[1, ..., 2].mul_(-1),
        "larger than": lambda sums: sums[1, ..., 0].mul_(-10),
        "same rows": lambda sums: sums[1, 0, 0, 0].add_(torch.tensor([0, 0, 1])),
        "more rows than any": lambda sums: sums[1].mul_(50),
    }
    for reason, lie in reasons.items():
        sums = honest["sums"].clone()
        lie(sums)
        found = method.check_updates(message, ids, ClientUpdate({}, {"sums": sums}), {})
        assert list(found) == [1]
        assert reason in found[1]


def test_counts_and_losses_that_no_rows_have_are_refused():
    task = make_task()
    method = FedTrees()
    ids = torch.arange(4)
    server = Server(
        task,
        task.info.training,
        task.init_params(0),
        method.init_server(task, {"value": torch.zeros(1)}),
        0,
        1,
        9,
    )
    message, _ = method.distribute(server, ids)
    most = int(task.num_examples(ids).max())
    cells = torch.zeros(4, 3, 1024, dtype=torch.float64)
    cells[:, :, 3] = most
    val = torch.tensor([[8.0, 1.0]], dtype=torch.float64).repeat(4, 1)

    def refused(**extra):
        return method.check_updates(message, ids, ClientUpdate({}, extra), {})

    assert refused(cells=cells, val=val) == {}
    for wrong, reason in (
        (0.5, "whole"),
        (-1.0, "below 0"),
        (1.0, "more rows"),
        (torch.nan, "whole"),
    ):
        lie = cells.clone()
        lie[2, 1, 7] = wrong
        assert reason in refused(cells=lie)[2]
    for wrong in ([8.1, 1.0], [1.0, most + 1.0], [torch.nan, 1.0]):
        lie = val.clone()
        lie[2] = torch.tensor(wrong)
        assert "losses" in refused(val=lie)[2]


@pytest.mark.parametrize("kind", ["binary", "multiclass", "survival"])
def test_sums_follow_from_the_level_above(kind):
    """Rows of a parent are in its children, in those bins that the split sends there."""
    simulated = simulation(make_task(kind, tree_patience=0))
    method = FedTrees()
    ids = torch.arange(4)
    memory: dict = {}
    refused = 0
    for round in range(1, 12):
        if round > 2:
            message, honest = reply_at(simulated)
            sums = honest["sums"]
            lie = sums.clone()
            lie[2] = sums[1]  # possible sums, of another client
            known = copy.deepcopy(memory)
            found = method.check_updates(message, ids, ClientUpdate({}, {"sums": lie}), known)
            is_root = int(message.params["progress"][LEVEL]) == 0
            assert list(found) == ([] if is_root else [2])
            refused += len(found)
            # Clients are compared with themselves, whoever else replies.
            for some in (torch.tensor([3, 2]), ids):
                known = copy.deepcopy(memory)
                part = ClientUpdate({}, {"sums": sums[some]})
                assert method.check_updates(message, some, part, known) == {}
            memory = known
        simulated.run_round()
    assert refused >= 6


@pytest.mark.parametrize("attack", ["flip", "scaled", "noise", "constant", "huge"])
def test_a_lying_client_is_named_and_left_out(attack):
    task = make_task()
    rounds = FedTrees().num_rounds(1, task.tree_options)
    schedule = RoundLoopConfig(rounds, 0, 1.0, "stacked", 4, True)
    make = with_attack(Stacked, f"{attack}:0.2")
    simulated = FederatedSimulation(FedTrees(), task, task.info.training, schedule, make)
    logs = run(simulated)
    grown = [log for log in logs if 3 <= log.round < logs[-1].round]
    assert all(len(log.rejected) == 1 for log in grown)


def pooled_auc(task, params) -> float:
    """Return the AUC of one model on the test rows of all clients."""
    own = task.data.split(np.arange(task.info.num_clients), "test")
    rank = task.forward(params, own.x)[:, 1].numpy().argsort().argsort()
    is_ill = own.y.numpy() == 1
    num_ill = is_ill.sum()
    return (rank[is_ill].sum() - num_ill * (num_ill - 1) / 2) / (num_ill * (~is_ill).sum())


def liar_tables() -> dict[str, dict[str, object]]:
    """A hundred sites of 60 rows, but one of 300."""
    random = np.random.default_rng(0)
    tables = {}
    for site in range(100):
        n = 300 if site == 50 else 60
        age = random.normal(size=n)
        blood = random.normal(size=n)
        score = age + np.sin(2 * blood) + random.normal(size=n)
        tables[f"{site:03}"] = {"age": age, "blood": blood, "ill": np.where(score > 0, "y", "n")}
    return tables


class Liar:
    """Site 0 replaces what it sends."""

    def __init__(self, lie: str, task: TreesTask) -> None:
        self.lie = lie
        self.task = task
        self.honest = task._statistics
        self.most = int(task.num_examples(torch.arange(100)).max())
        self.own = int(task.num_examples(torch.arange(1))[0])

    def __call__(self, ids, params, aux, seed):
        found = self.honest(ids, params, aux, seed)
        if ids[0] != 0:  # another part of the sites
            return found
        if "cells" in found and self.lie == "bins":  # all its values in one narrow cell
            found["cells"][0] = 0
            found["cells"][0, :, 600] = self.most
        if "val" in found and self.lie == "losses":  # more and more
            tree = float(params["progress"][0, TREE])
            found["val"][0, 0] = found["val"][0, 1] * min(8.0, 0.5 * tree)
        if "sums" in found:
            sums = found["sums"][0]
            unit = sums_unit(max_sum(params["limits"][0]))
            if self.lie == "opposite":
                sums[..., 0] *= -1
            elif self.lie == "extreme":  # every row has the largest gradient, and no curvature
                sums[..., 0] = (sums[..., 2] / unit).to(sums.dtype)
                sums[..., 1] = 0
            elif self.lie == "largest":  # as many rows as the largest site, the opposite of its own
                sums *= self.most // self.own
                sums[..., 0] *= -1
            elif self.lie == "every node":  # rows of the largest site in all nodes
                self._fill(sums, params, unit, [self.most // sums.shape[1]] * sums.shape[1])
            elif self.lie == "one leaf":  # equal rows, all of the largest gradient
                self._fill(sums, params, unit, self._rows_in_first_bins(params))
        return found

    def _fill(self, sums, params, unit, rows):
        """Put rows of the largest gradient into the first bin of every column."""
        offsets = self._offsets(params)
        sums[:] = 0
        for p, count in enumerate(rows):
            sums[0, p, offsets[:-1], 0] = int(count / unit)
            sums[0, p, offsets[:-1], 2] = count

    def _offsets(self, params):
        return binning.cell_offsets(params["edges"][0].numpy(), self.task.num_categories)

    def _rows_in_first_bins(self, params):
        """Return the rows at each node that is asked for, if all have the first bin everywhere."""
        one = {name: value[:1] for name, value in params.items()}
        tree = Trees.from_params(one).iteration(int(params["progress"][0, TREE]))
        edges = params["edges"][:1].numpy()
        tables = tables_of(tree, edges, self._offsets(params)[None], self.task.num_categories)
        reached = {0}
        node = 0
        while tables.column[0, 0, node] >= 0:
            is_left = tables.goes_left[0, 0, node, 0]
            node = int(tables.left[0, 0, node]) + (0 if is_left else 1)
            reached.add(node)
        asked = asked_nodes(params["asked"][0].numpy())[0]
        return [self.most if int(node) in reached else 0 for node in asked]


def grow_with(lie: str) -> tuple[float, list]:
    """Return the AUC of the common trees, and the rounds' records."""
    options = TableLearningConfig(
        target="ill", trees=15, tree_bins=31, tree_patience=5, val_share=0.2
    )
    whole = align_tables(tables_from_values(liar_tables()), options)
    task = task_from_tables("tables", whole, options, "trees", TrainingConfig(), 0)
    assert isinstance(task, TreesTask)
    if lie:
        task._statistics = Liar(lie, task)
    simulated = simulation(task, FedTrees(personal_trees="0"), keep=False)
    logs = run(simulated)
    return pooled_auc(task, simulated.params), logs


@pytest.fixture(scope="module")
def honest_auc() -> float:
    auc, logs = grow_with("")
    assert not any(log.rejected for log in logs)  # nobody is left out for nothing
    assert auc > 0.8
    return auc


@pytest.mark.slow
@pytest.mark.parametrize(
    "lie", ["extreme", "opposite", "largest", "one leaf", "bins", "losses", "every node"]
)
def test_one_liar_of_a_hundred_costs_at_most_a_point(lie, honest_auc):
    """Sums of rows that a client might have are not found out; they must not cost much."""
    auc, logs = grow_with(lie)
    rejected = [client for log in logs for client in log.rejected]
    assert set(rejected) <= {0}
    assert (len(rejected) > 20) == (lie == "every node")
    assert auc > honest_auc - 0.01


def test_only_new_trees_are_sent():
    """A client that replied before gets the growing tree; one that was away gets all trees."""
    task = make_task(tree_patience=0)
    method = FedTrees()
    everybody = torch.arange(4)
    params = task.init_params(0)
    state = method.init_server(task, params)
    for round in range(1, 12):
        server = Server(task, task.info.training, params, state, 0, round, 100)
        message, state = method.distribute(server, everybody)
        stage, tree = params["progress"][[STAGE, TREE]].long().tolist()
        rows = message.sent_rows["value"].tolist()
        columns = message.sent_rows["edges"][:, 0].tolist()
        if stage < 2:
            assert rows == [[0, 0]] * 4
        elif round == 3:
            assert rows == [[0, 1]] * 4
            assert columns == [0] * 4
        elif round == 7:  # client 1 did not reply in round 6
            assert rows == [[1, 2], [0, 2], [1, 2], [1, 2]]
            assert columns == [3, 0, 3, 3]
        else:
            assert columns == [3] * 4
            assert rows in ([[tree, tree + 1]] * 4, [[tree - 1, tree + 1]] * 4)
        ids = everybody[everybody != 1] if round == 6 else everybody
        params, state = one_round(task, method, params, state, round, ids)


def test_sites_that_are_apart_grow_the_same_trees(tmp_path):
    """Nodes that answer messages give the bits of a simulation."""
    task = make_task()
    method = FedTrees(personal_trees="2")
    loop = simulation(task, method, "loop")
    logs = run(loop)
    wire = Here(method, task, tmp_path, of="tables", more={**SMALL, **KINDS["binary"]})

    def make(*about):
        return RemoteExecutor(*about, wire=wire, run="test", time_limit=1.0, min_replies=1)

    schedule = RoundLoopConfig(loop.schedule.num_rounds, 0, 1.0, "loop", 4, True)
    remote = FederatedSimulation(method, task, task.info.training, schedule, make)
    remote_logs = run(remote)
    for mine, theirs in zip(remote_logs, logs, strict=True):
        assert not mine.absent
        assert mine.bytes == theirs.bytes
    assert remote.rounds_done == len(logs)
    assert largest_difference(loop.params, remote.params) == 0


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_the_module_and_its_onnx_file_predict_as_the_kernels_do(tmp_path, kind):
    onnxruntime = pytest.importorskip("onnxruntime")
    data = tmp_path / "sites"
    out = tmp_path / "run"
    write_sites(data)
    assert call(data, out, kind, "--personal-trees", "2") == 0
    for more in ([], ["--client", "1"]):
        file = tmp_path / f"model{len(more)}.onnx"
        words = ["export", str(out), "--format", "onnx", "--out", str(file), *more]
        assert main(words) == 0
        task = make_task(kind)
        x, _ = task.data.server("test")
        x = torch.cat([x, torch.tensor([[MISSING_INPUT, 3.0, 0.0], [0.0, 77.0, MISSING_INPUT]])])
        params = read_model(RunFolder(out), 1 if more else None)
        expected = task.forward(params, x)
        assert bool((params["categories"] > 0).any())
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(["logits"], {"x": x.numpy()})[0])
        np.testing.assert_allclose(found.double().numpy(), expected.numpy(), atol=1e-5)
