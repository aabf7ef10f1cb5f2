"""What is public, how lightly it is imported, and that every line of the documentation's Python
runs.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import equipoise as eq
from equipoise import methods
from equipoise.methods import all_methods

ROOT = Path(__file__).parents[2]
SHORT = {"rounds": 2, "clients": 4, "samples": 40, "epochs": 1}


def imported_for_types(path: Path) -> set[str]:
    """Names under ``if TYPE_CHECKING`` of a module."""
    tree = ast.parse(path.read_text())
    [block] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_importing_is_light() -> None:
    light = "import sys, equipoise; assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", f"{light}; equipoise.Method; assert 'torch' in sys.modules"],
        check=True,
    )


def test_every_public_name_is_there_for_users_editors_and_readers() -> None:
    assert all(getattr(eq, name) is not None for name in eq.__all__)
    assert imported_for_types(Path(eq.__file__)) | {"UsageError"} == set(eq.__all__)
    assert set(eq.__all__) <= set(dir(eq))
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert [name for name in eq.__all__ if not re.search(rf"\beq\.{name}\b", page)] == []
    with pytest.raises(AttributeError, match="no attribute 'add_task'"):
        _ = eq.add_task


def test_every_method_is_in_the_namespace() -> None:
    """By its file alone; what editors complete from may lag behind, but names nothing that is not
    there.
    """
    shipped = {method.__name__: method for method in all_methods().values()}
    assert imported_for_types(Path(methods.__file__)) <= set(shipped)
    assert set(dir(methods)) == {*shipped, "all_methods", "find_method"}
    assert all(getattr(methods, name) is method for name, method in shipped.items())
    with pytest.raises(AttributeError, match="did you mean 'FedProx'"):
        _ = methods.FedProxx


def blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)


def shortened(text: str) -> str:
    """The same calls on less data, for fewer rounds."""
    return re.sub(r"rounds=\d+", "rounds=2, clients=8, samples=40, epochs=1", text)


def test_the_readme_and_the_start_run(here: Path) -> None:
    for page in ("README.md", "docs/tutorials/first-run.md"):
        names: dict[str, Any] = {}
        assert blocks(page)
        for block in blocks(page):
            exec(shortened(block), names)
        assert names["run"].is_finished


def test_the_reference_runs(here: Path) -> None:
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    names: dict[str, Any] = {"__name__": "reference"}
    for block in blocks("docs/reference/python.md"):
        exec(block, names)


def tables() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(0)
    ages = {name: rng.normal(50, 10, 40) for name in ("cleveland", "va")}
    return {
        name: {"age": age.tolist(), "num": (age > 50).astype(int).tolist()}
        for name, age in ages.items()
    }


def test_the_pages_on_own_methods_and_data_run(here: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra data is not installed")
    pandas = pytest.importorskip("pandas", reason="the extra sklearn is not installed")
    names: dict[str, Any] = {"__name__": "own"}
    for block in blocks("docs/tutorials/own-method.md"):
        exec(shortened(block), names)
    (here / "clinics").mkdir()
    for name, table in tables().items():
        lines = ["age,ill", *(f"{age},{ill}" for age, ill in zip(*table.values(), strict=True))]
        (here / "clinics" / f"{name}.csv").write_text("\n".join(lines))
    given = [{"age": table["age"], "ill": table["num"]} for table in tables().values()]
    own = {
        "table0": given[0],
        "table1": given[1],
        "frame": pandas.concat(
            [pandas.DataFrame(table).assign(hospital=name) for name, table in tables().items()]
        ),
    }
    for block in blocks("docs/how-to/tables-python.md"):
        exec(re.sub(r"rounds=\d+", "rounds=2", block.replace("readmitted", "ill")), own)
    assert set(own["frame"]["predicted"]) <= {"num <= 0", "num > 0"}
    for page in ("arrays-python", "selection"):
        names = {"__name__": "own"}
        for block in blocks(f"docs/how-to/{page}.md"):
            exec(re.sub(r"rounds=\d+", "rounds=2", block), names)
        assert names["run"].is_finished


def test_the_api_as_designed(here: Path) -> None:
    """Values that the calls of the design return; test_design.py runs each of its lines."""
    pytest.importorskip("pyarrow", reason="the extra data is not installed")
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    run = eq.run(method="autopilot", task="synthetic", seed=0, **SHORT)
    assert 0 <= run.final.global_.acc <= 1
    assert 0 <= run.final.personal.p10 <= 1
    assert run.final.bytes.up > 0
    assert run.rounds[-1].personal.acc == run.final.personal.acc
    task = eq.Task.from_tables(tables(), target="num", target_type="classification")
    good = eq.run(
        method="fedavg",
        task=task,
        rounds=9,
        on_round=lambda r: "good enough" if r.personal.acc > 0 else None,
    )
    assert good.final.stopped == "good enough"
    eq.run(
        method="fedavg",
        task=task,
        lr=eq.cosine(0.1, 0.001),
        epochs=eq.steps({0: 1, 50: 5}),
        rounds=2,
    )
    run = eq.run("runs/first", method="autopilot", task=task, rounds=2)
    run = eq.open("runs/first", task=task)
    assert isinstance(run.model(), nn.Module)
    assert isinstance(run.model(client="va"), nn.Module)
    assert len(run.predict({"age": [30.0, 70.0]}, client="va")) == 2
    run.resume()
    assert run.certify(samples=2).samples == 2
    assert run.export("va.safetensors", client="va").is_file()
    methods = ["fedavg", eq.methods.FedProx(mu=0.1), eq.methods.Joint()]
    compared = eq.compare(methods=methods, task=task, seeds=2, rounds=2)
    compared.table()
    compared.paired("personal", against="fedavg")
    known = eq.Task.from_tables(
        {**tables(), "server": tables()["va"]}, target="num", preprocess_from="server"
    )
    eq.run(method=eq.private(eq.methods.FedAvg(), clip=1.0, noise=0.8), task=known, rounds=2)
