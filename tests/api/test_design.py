"""The Python API as it was designed, line by line, on less data and for fewer rounds."""

import ast
import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import equipoise as eq

pd = pytest.importorskip("pandas", reason="the extra text is not installed")

DESIGN = '''
from dataclasses import dataclass
import equipoise as eq

# 1. A first run. Names, classes or instances.
run = eq.run(method="autopilot", task="synthetic", rounds=200, seed=0)
run.final.global_.acc, run.final.personal.p10
run.final.bytes.up, run.rounds[-1].personal.acc
run.rounds_frame(), run.clients_frame()
run.report()

# 2. A method of one's own.
@dataclass(frozen=True)
class Cautious(eq.Method):
    """Go only part of the way to the received model."""
    name = "cautious"
    caution: float = eq.option(0.5, "Share of the way to the received model.", low=0.0, high=1.0)

    def receive(self, client: eq.Client) -> tuple[eq.Params, eq.State]:
        return super().receive(client)
eq.run(method=Cautious(caution=0.3), task="synthetic", rounds=50)

# 3. Data and model of one's own. A task is a value.
task = eq.Task.from_tables({"cleveland": df0, "va": df1}, target="num > 0")
task = eq.Task.from_datasets(clients, model=net)
task = eq.Task.from_datasets(clients, model=frozen_net, adapter="rank=8")
task = eq.Task.from_folder("clinics/", target="ill")

# 4. A constant, a schedule or an agent.
eq.run(method="fedavg", task=task, lr=eq.cosine(0.1, 0.001), epochs=eq.steps({0: 1, 50: 5}))

# 5. Watching and stopping.
eq.run(task=task, callbacks=[eq.callbacks.EarlyStopping("personal.auc", patience=10)])
eq.run(task=task, callbacks=[eq.callbacks.Progress()])
eq.run(task=task, on_round=lambda r: "good enough" if r.personal.acc > 0.97 else None)

# 6. What came out, as things that can be used.
run = eq.open("runs/first")
net = run.model()
net = run.model(client="va")
run.predict(new_rows, client="va")
run.evaluate(held_out, client="va")
newcomer = run.adapt(their_rows)
run.resume(); run.certify(samples=64); run.export("va.onnx", client="va")

# 7. Comparisons.
c = eq.compare(
    methods=["fedavg", eq.methods.FedProx(mu=0.1), "joint"], task=task, seeds=5, rounds=100
)
c.table(); c.frame(); c.paired("personal", against="fedavg"); c.report()

# 8. Wrapping: any method made private, robust or secure, by one mechanism.
eq.run(method=eq.private(eq.methods.FedAvg(), clip=1.0, noise=0.8), task=arrays)
eq.run(method=eq.robust("scaffold", rule="trimmed", share=0.2), task=arrays)

# 9. The scikit-learn way.
from equipoise.sklearn import FederatedClassifier
model = FederatedClassifier().fit(X, y, clients=X["hospital"])
model.predict_proba(X_new, clients=X_new["hospital"])
model.global_.predict(X_new); model.leaderboard()
cross_val_score(FederatedClassifier(), X, y, groups=X["hospital"])
'''


def clinics() -> dict[str, Any]:
    """Ages and a degree of illness (0 to 4), for two clients."""
    rng = np.random.default_rng(0)
    ages = {name: rng.normal(50, 10, 60) for name in ("cleveland", "va")}
    degrees = {name: np.clip((age - 50) // 5, 0, 4).astype(int) for name, age in ages.items()}
    return {name: pd.DataFrame({"age": ages[name], "num": degrees[name]}) for name in ages}


def estimator_names() -> dict[str, Any]:
    """What the lines on estimators use, with a quick estimator."""
    from sklearn.model_selection import GroupKFold, cross_val_score

    tables = clinics()
    rows = pd.concat([table.assign(hospital=name) for name, table in tables.items()])
    return {
        "X": rows[["age", "hospital"]],
        "X_new": rows[["age", "hospital"]][:20],
        "y": (rows["num"] > 0).to_numpy(),
        "cross_val_score": functools.partial(
            cross_val_score, cv=GroupKFold(2), params={"clients": rows["hospital"]}
        ),
    }


def test_every_line_of_the_design_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ("pyarrow", "dp_accounting", "plotly", "onnxruntime", "sklearn"):
        pytest.importorskip(extra, reason="an extra is not installed")
    tables = clinics()
    (here / "clinics").mkdir()
    for name, table in tables.items():
        ill = pd.DataFrame({"age": table["age"], "ill": (table["num"] > 0).astype(int)})
        ill.to_csv(here / "clinics" / f"{name}.csv", index=False)
    clients = {
        name: (table[["age"]].to_numpy(), (table["num"] > 0).astype(int).to_numpy())
        for name, table in tables.items()
    }
    frozen = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 2)).requires_grad_(False)
    folder_task = eq.Task.from_folder("clinics/", target="ill")
    eq.run("runs/first", method="autopilot", task=folder_task, rounds=2)
    monkeypatch.setattr(eq, "run", functools.partial(eq.run, rounds=2))
    names: dict[str, Any] = {
        "__name__": "design",
        "df0": tables["cleveland"],
        "df1": tables["va"],
        "clients": clients,
        "net": nn.Linear(1, 2),
        "frozen_net": frozen,
        "new_rows": pd.DataFrame({"age": [30.0, 70.0]}),
        "their_rows": pd.DataFrame({"age": [30.0, 70.0] * 10, "ill": [0, 1] * 10}),
        "held_out": pd.DataFrame({"age": [30.0, 70.0] * 10, "ill": [0, 1] * 10}),
        **estimator_names(),
        "arrays": eq.Task.from_datasets(clients, model=nn.Linear(1, 2)),
    }
    text = re.sub(r"rounds=\d+", "rounds=2", DESIGN)
    text = text.replace("seeds=5", "seeds=2").replace("samples=64", "samples=2")
    for statement in ast.parse(text).body:
        exec(compile(ast.Module([statement], []), "the design", "exec"), names)
    assert names["run"].is_finished
    assert isinstance(names["net"], nn.Module)
    assert (here / "va.onnx").is_file()


def test_designed_tasks_run(here: Path) -> None:
    """The tasks that the design makes and does not run: a condition as target, adapters."""
    pytest.importorskip("pyarrow", reason="the extra data is not installed")
    tables = clinics()
    run = eq.run(task=eq.Task.from_tables(tables, target="num > 0"), rounds=2)
    assert run.final.global_.acc is not None
    clients = [(table[["age"]].to_numpy(), table["num"].to_numpy()) for table in tables.values()]
    net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 5)).requires_grad_(False)
    task = eq.Task.from_datasets(clients, model=net, adapter="rank=2")
    assert eq.run(task=task, rounds=2).final.global_.acc is not None
