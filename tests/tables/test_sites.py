"""Sites whose rows stay where they are: sums and counts by file, one preparation back, the same as
in a simulation.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.data.tabular import Preprocessor, TableConfig, table_from_values
from equipoise.data.tabular.exchange import compute_statistics, fit_columns
from equipoise.data.tabular.target_spec import Condition, TargetSpec
from equipoise.experiment.build import build_task
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError

SITES = ("north", "south")


def columns(seed: int, n: int) -> dict[str, list[str]]:
    rng = np.random.default_rng(seed)
    age = rng.normal(50 + 5 * seed, 10, n).round(1)
    return {
        "age": ["" if i % 9 == 0 else str(a) for i, a in enumerate(age)],
        "sex": rng.choice(["f", "m"], n).tolist(),
        "ward": rng.choice(["A", "B", "C"], n).tolist(),
        "ill": ["yes" if a > 50 else "no" for a in age],
    }


def write(path: Path, table: dict[str, list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "\n".join([",".join(table), *(",".join(row) for row in zip(*table.values(), strict=True))])
    )


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    for seed, name in enumerate(SITES):
        write(tmp_path / name / "train.csv", columns(seed, 80))
        write(tmp_path / name / "test.csv", columns(seed + 10, 30))
    for part in ("public", "test"):
        write(tmp_path / "server" / f"{part}.csv", columns(7, 30))
    return tmp_path


def told(sites: Path) -> list[str]:
    for name in SITES:
        given = [
            "--data",
            str(sites / name),
            "--client",
            name,
            "--target",
            "ill",
            "--out",
            str(sites / f"{name}.json"),
        ]
        assert main(["data", "summarise", *given]) == 0
    return [str(sites / f"{name}.json") for name in SITES]


def test_sites_apart_prepare_as_one_who_has_everything(sites: Path) -> None:
    files = told(sites)
    assert (
        main(["data", "merge", *files, "--target", "ill", "--out", str(sites / "preparation.json")])
        == 0
    )
    made = Preprocessor.load(sites / "preparation.json")
    assert made.clients == SITES
    raw = [columns(seed, 80) for seed in range(2)]
    tables = [
        table_from_values({**table, "age": [float(a) if a else None for a in table["age"]]})
        for table in raw
    ]
    spec = TargetSpec(Condition("ill"))
    messages = [
        compute_statistics(name, table, spec, TableConfig(target="ill"))
        for name, table in zip(SITES, tables, strict=True)
    ]
    assert made == fit_columns(messages, spec, TableConfig(target="ill")).preprocessor
    for name in (*SITES, "server"):
        shutil.copy(sites / "preparation.json", sites / name)
    given = {"task": "remote-tables", "clients": 2}
    node, server = (
        build_task(ExperimentConfig.from_options({**given, "data": str(sites / name)}))
        for name in ("south", "server")
    )
    assert node.data.shape == server.data.shape == (len(made.features),)
    assert node.info.client_names == SITES
    assert node.info.class_names == ("no", "yes")
    assert node.preparation.to_json() == server.preparation.to_json() == made.to_json()
    with pytest.raises(UsageError, match="is of 2 sites, but clients is 3"):
        build_task(
            ExperimentConfig.from_options({**given, "clients": 3, "data": str(sites / "south")})
        )
    write(
        sites / "south" / "test.csv", {**columns(1, 5), "ill": ["yes", "no", "perhaps", "no", "no"]}
    )
    with pytest.raises(
        UsageError, match=r"row 4 of the test rows in .* has a class that no client had"
    ):
        build_task(ExperimentConfig.from_options({**given, "data": str(sites / "south")}))


def test_classes_of_test_rows_are_told_too(sites: Path) -> None:
    write(sites / "north" / "test.csv", {**columns(3, 4), "ill": ["yes", "no", "perhaps", "no"]})
    assert (
        main(["data", "merge", *told(sites), "--target", "ill", "--out", str(sites / "p.json")])
        == 0
    )
    assert Preprocessor.load(sites / "p.json").target.classes == ("no", "perhaps", "yes")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["data", "summarise", "--data", "SITES", "--client", "x", "--out", "SITES/x.json"],
            "has no train.csv",
        ),
        (
            [
                "data",
                "summarise",
                "--data",
                "SITES/north",
                "--client",
                "x",
                "--out",
                "SITES/x.json",
            ],
            "no column 'label'",
        ),
        (["data", "merge", "SITES/none.json"], "cannot be read"),
        (
            ["data", "merge", "SITES/north/train.csv", "--target", "ill"],
            "damaged or of another version",
        ),
        (
            ["data", "merge", "SITES/north.json", "SITES/north.json", "--target", "ill"],
            "a file is given twice",
        ),
        (
            ["data", "merge", "SITES/north.json", "--target", "sex"],
            "summarised for another target than 'sex'",
        ),
        (
            ["data", "merge", "SITES/north.json", "--target", "ill", "--standardise", "client"],
            "that are apart",
        ),
        (["data", "mrge"], "did you mean 'merge'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    says: str,
    sites: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(sites)
    told(sites)
    capsys.readouterr()
    assert main([argument.replace("SITES", str(sites)) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
