"""Files of clinics on the command line: a folder or one file, all problems at once, names in every
result.
"""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import equipoise
from equipoise.cli import main
from equipoise.data.tabular import Preprocessor
from equipoise.experiment.build import build_task
from equipoise.experiment.model_card import read_card
from equipoise.experiment.runner import Interrupted, resume_run, run
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError

HEADER = ["age", "colour", "flag", "label"]


def clinic(rng: np.random.Generator, n: int = 30) -> list[list[object]]:
    ages = rng.normal(50, 10, n).round(2)
    return [
        [age, rng.choice(["red", "blue"]), int(rng.integers(0, 2)), "old" if age > 50 else "young"]
        for age in ages
    ]


def write(path: Path, header: list[str], rows: list[list[object]], separator: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([header, *rows])


def settings(data: Path, **options: object) -> ExperimentConfig:
    return ExperimentConfig.from_options(
        {"task": "tables", "data": str(data), "rounds": 2, **options}
    )


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("b", "a", "c"):
        write(tmp_path / "clinics" / f"{name}.csv", HEADER, clinic(rng))
    return tmp_path / "clinics"


def test_one_file_for_each_client(clinics: Path) -> None:
    task = build_task(settings(clinics))
    assert task.info.client_names == ("a", "b", "c")
    assert task.info.class_names == ("old", "young")
    assert task.preparation.preprocessor.features == ("age", "colour = red", "flag = 1")
    assert task.data.shape == (3,)


def test_sites_that_save_differently_mean_the_same(clinics: Path) -> None:
    before = build_task(settings(clinics)).data.fingerprint()
    rows = list(csv.reader((clinics / "b.csv").read_text().splitlines()))
    turned = [[str(row[0]).replace(".", ","), *row[1:]][::-1] for row in rows]
    write(clinics / "b.csv", turned[0], turned[1:], separator=";")
    text = (clinics / "b.csv").read_text()
    (clinics / "b.csv").write_text(text, encoding="utf-8-sig")
    assert build_task(settings(clinics)).data.fingerprint() == before


def test_one_file_with_a_client_column(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra data is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    columns = {
        "who": ["x"] * 20 + ["NA"] * 25,
        "f": rng.normal(size=45),
        "label": rng.integers(3, 6, 45),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "ALL.PARQUET")
    task = build_task(settings(tmp_path / "ALL.PARQUET", client_column="who"))
    assert task.info.client_names == ("NA", "x")
    assert task.info.class_names == ("3", "4", "5")
    write(
        tmp_path / "all.csv",
        ["who", "f", "label"],
        [[10 - i % 9, i * i % 7 / 3, i % 2] for i in range(180)],
    )
    assert build_task(settings(tmp_path / "all.csv", client_column="who")).info.client_names[
        -2:
    ] == (
        "9",
        "10",
    )


def test_ignored_columns_are_gone_before_anything_else(clinics: Path) -> None:
    write(
        clinics / "c.csv",
        [*HEADER[:3], "remark, long", "label"],
        [[1.5, "red", 0, "x", "old"]] * 30,
    )
    with pytest.raises(UsageError, match="client 'c': alone has 'remark, long'"):
        build_task(settings(clinics))
    task = build_task(settings(clinics, ignore_columns='"remark, long",colour'))
    assert task.preparation.preprocessor.features == ("age", "flag = 1")
    with pytest.raises(UsageError, match=r"no column 'remak' .did you mean"):
        build_task(settings(clinics, ignore_columns="remak"))


def test_all_problems_of_all_clients_at_once(
    clinics: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    (clinics / "a.csv").write_bytes(b"age,colour\n1,caf\xe9\n")
    write(clinics / "b.csv", [*HEADER[:-1], "result"], clinic(rng))
    write(clinics / "d.csv", HEADER, [])
    write(clinics / "e.csv", HEADER, [[1, "red", 0], *clinic(rng)])
    write(clinics / "f.csv", HEADER, clinic(rng, 5))
    with pytest.raises(UsageError) as error:
        build_task(settings(clinics))
    for words in (
        "a.csv' cannot be read: it is not UTF-8 in row 2",
        "client 'b': lacks 'label' and alone has 'result'",
        "d.csv' has no rows",
        "e.csv' cannot be read: its first row names 4 columns, but row 2 has 3",
    ):
        assert words in str(error.value)
    assert main(["data", "describe", "--task", "tables", "--data", str(clinics)]) == 2
    shown = capsys.readouterr().out
    assert "5 problems" in shown
    assert shown.splitlines()[-1] == "solve the problems above, then describe the data again"


@pytest.mark.parametrize(
    ("header", "row", "options", "words"),
    [
        (["age", "y"], [1, 2], {}, "no column 'label'"),
        (["age", "lable"], [1, 2], {}, "did you mean 'lable'"),
        (["age", "label"], [1.0, 0.25], {}, "different numbers: say --target-type regression"),
        (["label"], [1], {}, "no column is left to predict from"),
        (["age", "label"], ["", 1], {"missing": "refuse"}, "'age': has missing values"),
        (
            ["age", "label"],
            [1, ""],
            {"missing": "refuse"},
            "no target in rows 2, 3, 4, 5, 6 and 15 more",
        ),
        (["age", "label"], [1, 1], {"ignore_columns": "agee"}, "did you mean 'age'"),
        (
            ["age", "label"],
            [1, 1],
            {"small_clients": "drp"},
            "small_clients is 'drp': must be one of refuse, drop",
        ),
    ],
)
def test_bad_tables_are_one_sentence(
    header: list[str], row: list[object], options: dict[str, str], words: str, tmp_path: Path
) -> None:
    other = [2.5 if value == "" else value for value in row]
    write(
        tmp_path / "a.csv",
        header,
        [row] * 20 + [[*(v + i for v in other[:-1]), 7] for i in range(20)],
    )
    with pytest.raises(UsageError, match=words):
        build_task(settings(tmp_path, **options))


def test_bad_places_are_one_sentence(tmp_path: Path) -> None:
    for data, words in (
        ("", "needs --data"),
        (tmp_path / "no", "no file or folder"),
        (tmp_path, "holds no CSV"),
    ):
        with pytest.raises(UsageError, match=words):
            build_task(ExperimentConfig.from_options({"task": "tables", "data": str(data)}))
    write(
        tmp_path / "all.csv",
        ["who", "f", "label"],
        [["", 1, 1], *[["x", i % 7, i % 2] for i in range(30)]],
    )
    with pytest.raises(UsageError, match=r"no client column 'client'.*it has 'who', 'f', 'label'"):
        build_task(settings(tmp_path / "all.csv"))
    with pytest.raises(UsageError, match="column 'who': has no client in row 2"):
        build_task(settings(tmp_path / "all.csv", client_column="who"))


def test_names_are_in_every_result(clinics: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary = equipoise.run(out, task="tables", data=str(clinics), rounds=2).final
    rows = list(csv.DictReader((out / "clients.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["a", "b", "c"]
    labels = list(csv.DictReader((out / "labels.csv").read_text().splitlines()))
    assert list(labels[0]) == ["client", "name", "old", "young"]
    preprocessor = Preprocessor.load(out / "preparation.json")
    assert preprocessor.clients == ("a", "b", "c")
    new = preprocessor.transform({"age": [50, None], "colour": ["red", "green"], "flag": [1, 0]})
    assert new.shape == (2, 3)
    assert summary.bytes_before.down == 3 * len((out / "preparation.json").read_bytes())
    assert summary.bytes.up > summary.bytes_before.up > 0


def test_a_run_is_not_resumed_on_other_data(clinics: Path, tmp_path: Path) -> None:
    def stop(log: object) -> None:
        raise Interrupted

    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(settings(clinics, checkpoint_every=1), out, on_round_end=stop)
    text = (clinics / "b.csv").read_text()
    changed = text.replace("red", "blue", 1)
    (clinics / "b.csv").write_text(changed)
    with pytest.raises(UsageError, match=r"the data have changed since the run in .* began"):
        resume_run(out)
    (clinics / "b.csv").write_text(text)
    assert resume_run(out).rounds == 2


def test_describe_ends_with_a_command_that_works(
    clinics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(clinics / "wee.csv", HEADER, clinic(np.random.default_rng(5), 6))
    given = ["--task", "tables", "--data", str(clinics), "--rounds", "1"]
    assert main(["data", "describe", *given]) == 2
    shown = capsys.readouterr().out
    assert "client 'wee' has 6 rows" in shown
    assert all(len(line) <= 80 for line in shown.splitlines()[1:-1])
    command = shlex.split(shown.splitlines()[-1])
    assert command[-2:] == ["--small-clients", "pool"]
    assert main([*command[1:], "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert main(["data", "describe", *given, "--small-clients", "drop", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [client["name"] for client in found["clients"]] == ["a", "b", "c"]
    assert sum(found["clients"][0]["classes"]) == 30
    assert {column["name"]: column["kind"] for column in found["columns"]}["colour"] == "category"


def test_a_client_is_found_by_its_name_before_its_number(
    clinics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clinics / "c.csv").rename(clinics / "0.csv")
    out = tmp_path / "run"
    equipoise.run(out, task="tables", data=str(clinics), rounds=1, method="finetune")
    folder = RunFolder(out)
    assert [folder.find_client(name) for name in ("0", "a", "b")] == [0, 1, 2]
    with pytest.raises(UsageError, match="has no client '2'"):  # a name here is a number
        folder.find_client("2")
    (clinics / "0.csv").rename(clinics / "z0.csv")
    equipoise.run(
        out, task="tables", data=str(clinics), rounds=1, method="finetune", overwrite=True
    )
    assert [folder.find_client(name) for name in ("0", "a", "z0", "2")] == [0, 0, 2, 2]
    assert main(["export", str(out), "--client", "z0"]) == 0
    assert "export-client-z0" in capsys.readouterr().out
    card = read_card(folder)
    assert card is not None
    assert replace(card, clients=("a", "b", "../z 0")).file_name(2) == "2"  # no name of a file
    assert main(["export", str(out), "--client", "zo"]) == 2
    assert "no client 'zo' (did you mean 'z0'?): it has a, b, z0" in capsys.readouterr().err
