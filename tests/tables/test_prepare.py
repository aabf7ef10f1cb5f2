"""What `describe` shows is what is trained; identifiers, names, codes and events of real tables."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.description import describe_tables
from equipoise.data.tabular.io import split_by_client, table_from_values
from equipoise.data.tabular.pipeline import TabularFederation, build_federation
from equipoise.data.tabular.table import ClientTables
from equipoise.utils.errors import UsageError

SITES = 12


def wards(seed: int = 0, shuffle: bool = False, num_small: int = 4) -> dict[str, list[object]]:
    """A table with row numbers, patient numbers, a school, names and measurements."""
    rng = np.random.default_rng(seed)
    sizes = [6] * num_small + [40] * (SITES - num_small)
    site = np.repeat([f"ward {i:02}" for i in range(SITES)], sizes)
    n = len(site)
    order = rng.permutation(n) if shuffle else np.arange(n)
    columns: dict[str, object] = {
        "rownames": np.arange(1, n + 1),
        "Order": np.arange(n) + 7000,
        "subject": rng.permutation(900_000)[:n] + 100_000,
        "first_name": [f"First{i % 60}" for i in range(n)],
        "school": rng.integers(1, 61, n),
        "cholesterol": rng.integers(120, 420, n),
        "sex": rng.choice(["f", "m"], n),
        "grade": rng.choice(["1", "2", "3", "."], n),
        "ward": site,
        "ill": rng.integers(0, 2, n),
    }
    return {name: list(np.asarray(values, object)[order]) for name, values in columns.items()}


def tables_of(columns: dict[str, list[object]]) -> ClientTables:
    table = table_from_values(columns, "it", "ward")
    return split_by_client(table, "ward", "it")[0]


def federation(columns: dict[str, list[object]], **choices: str) -> TabularFederation:
    config = TableConfig(**{"target": "ill", "small_clients": "pool", **choices})
    return build_federation(tables_of(columns), config, np.random.default_rng(3))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("small_clients", ["pool", "drop", "keep"])
def test_described_is_trained(shuffle: bool, small_clients: str) -> None:
    columns = wards(shuffle=shuffle)
    config = TableConfig(target="ill", small_clients=small_clients)
    shown = describe_tables(tables_of(columns), config, np.random.default_rng(3))
    trained = federation(columns, small_clients=small_clients)
    becomes = {column.name: column.kind for column in shown.columns}
    inputs = {encoder.name for encoder in trained.preprocessor.encoders}
    assert {name for name, kind in becomes.items() if kind != "left out"} == inputs
    assert tuple(client.name for client in shown.clients) == trained.names
    assert inputs == {"cholesterol", "sex", "grade"}
    median = next(e.median for e in trained.preprocessor.encoders if e.name == "cholesterol")
    assert f"median {median:.5g}" in next(
        c.values for c in shown.columns if c.name == "cholesterol"
    )


def test_reasons_name_what_a_column_is() -> None:
    reasons = {c.name: c.reason for c in federation(wards()).preprocessor.dropped}
    assert "numbers rows or people" in reasons["rownames"]
    assert "numbers rows or people" in reasons["Order"]
    assert "numbers rows or people" in reasons["subject"]
    assert "names people" in reasons["first_name"]
    assert "repeat and have no order (--categories keeps" in reasons["school"]
    kept = federation(wards(), categories="school", numbers="subject").preprocessor
    assert {"school", "subject"} <= {encoder.name for encoder in kept.encoders}


def test_site_numbers_that_start_again_at_each_site_are_identifiers_after_pooling() -> None:
    columns = wards()
    seen: dict[object, int] = {}
    columns["case"] = [seen.setdefault(w, 0) or 0 for w in columns["ward"]]
    for row, ward in enumerate(columns["ward"]):
        seen[ward] += 1
        columns["case"][row] = seen[ward]
    assert "case" in {c.name for c in federation(columns).preprocessor.dropped}


def test_measurements_that_happen_to_be_unique_in_a_small_table_stay() -> None:
    rng = np.random.default_rng(1)
    columns = {"ward": ["a"] * 20 + ["b"] * 20, "ill": [0, 1] * 20}
    columns["income"] = [int(v) for v in rng.permutation(60_000)[:40] + 9_000]
    columns["chol"] = [int(v) for v in np.tile(rng.permutation(300)[:20] + 120, 2)]
    assert {e.name for e in federation(columns).preprocessor.encoders} == {"income", "chol"}


def test_the_dot_of_sas_is_missing() -> None:
    grade = next(e for e in federation(wards()).preprocessor.encoders if e.name == "grade")
    assert grade.values == ("1", "2", "3")
    assert grade.marks_missing


def test_small_clients_are_one_line_and_the_pool_serves_them() -> None:
    columns = wards(num_small=10)
    config = TableConfig(target="ill", small_clients="refuse")
    shown = describe_tables(tables_of(columns), config, np.random.default_rng(0))
    assert len(shown.problems) == 1
    assert "10 clients have fewer than 10 rows with a target (6 to 6:" in str(shown.problems[0])
    pooled = federation(columns)
    assert pooled.names == ("ward 10", "ward 11", "10 small clients")
    assert dict(pooled.preprocessor.served_by)["ward 03"] == "10 small clients"
    assert sum("are pooled into '10 small clients'" in note for note in pooled.notes) == 1


# ------------------------------------------------------------------ events


def survival(status: list[object], **choices: str) -> TabularFederation:
    rng = np.random.default_rng(0)
    columns = {
        "ward": ["a", "b"] * 20,
        "age": list(rng.normal(60, 8, 40)),
        "time": list(rng.integers(10, 900, 40)),
        "status": status * (40 // len(status)),
    }
    config = {"target": "time", "event": "status", **choices}
    table = split_by_client(table_from_values(columns, "it", "ward"), "ward", "it")[0]
    return build_federation(table, TableConfig(**config), np.random.default_rng(0))


def events(made: TabularFederation) -> float:
    y = np.concatenate([made.data.split(np.arange(2), name).y for name in ("train", "val", "test")])
    return float(y[:, 1].mean())


def test_one_and_two_are_read_as_in_r_and_sas() -> None:
    made = survival([1, 2, 2, 1])
    assert events(made) == pytest.approx(0.5, abs=0.15)
    assert made.preprocessor.target_spec.event is not None
    assert made.preprocessor.target_spec.event.name == "status == 2"
    assert any("2 is an event" in note for note in made.notes)
    zero_one = survival([0, 1, 1, 0])
    assert events(made) == events(zero_one)


@pytest.mark.parametrize(
    ("status", "event"),
    [
        ([1, 2, 2, 3], "status == 2"),
        (["A", "D", "D", "A"], "status == D"),
        ([0, 5, 9, 0], "status > 1"),
    ],
)
def test_events_are_conditions_like_targets(status: list[object], event: str) -> None:
    reference = survival([0, 1, 1, 0])
    assert events(survival(status, event=event)) == events(reference)


def test_unclear_events_say_what_to_write_and_nothing_else() -> None:
    with pytest.raises(UsageError) as error:
        survival(["A", "D"])
    assert str(error.value) == (
        "it: column 'status': holds 'A', 'D', and it is not clear which of them is an event: "
        'say it, for example --event "status == D"'
    )
    with pytest.raises(UsageError, match="no row has status == 7"):
        survival([0, 1], event="status == 7")


# ------------------------------------------------------------------ the command line


def write(path: Path, columns: dict[str, list[object]]) -> Path:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_describe_from_the_command_line_and_its_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = wards(shuffle=True)
    columns["ward"][5] = ""
    file = write(tmp_path / "wards.csv", columns)
    given = ["--data", str(file), "--client-column", "ward", "--target", "ill"]
    assert main(["data", "describe", *given]) == 2
    shown = capsys.readouterr().out
    assert "2 problems" in shown
    command = shlex.split(shown.splitlines()[-1])
    assert command[:2] == ["equipoise", "compare"]
    assert "--methods" not in command  # the bare command compares what is recommended
    assert command[-4:] == ["--missing-site", "drop", "--small-clients", "pool"]
    solved = ["--missing-site", "drop", "--small-clients", "pool"]
    assert main(["data", "describe", *given, *solved]) == 0
    assert "which are left out: row 7" in capsys.readouterr().out


def test_data_without_a_task_are_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "wards.csv", wards(num_small=0))
    given = ["--data", str(file), "--client-column", "ward", "--target", "ill", "--rounds", "1"]
    assert main(["run", *given, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert '"task": "tables"' in (tmp_path / "run" / "config.json").read_text()
    for command in (["data", "describe"], ["run", "--data", "x"], ["compare", "--data", "x"]):
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        shown = capsys.readouterr().out
        assert all(option in shown for option in ("--data", "--target", "--client-column"))


def test_a_pooled_client_is_told_its_model_and_never_another_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "wards.csv", wards())
    given = ["--data", str(file), "--client-column", "ward", "--target", "ill", "--rounds", "1"]
    out = str(tmp_path / "run")
    assert main(["run", *given, "--small-clients", "pool", "--out", out, "--quiet"]) == 0
    assert main(["predict", out, str(file), "--client", "ward 01"]) == 2
    shown = capsys.readouterr().err
    assert "the model of '4 small clients' was trained on its rows and serves it" in shown
    assert "did you mean" not in shown


@pytest.mark.parametrize("seed", range(4))
def test_a_cell_that_is_no_number_is_named_wherever_its_row_goes(seed: int) -> None:
    """With some seeds the row is one of the test, which the sums of clients do not know."""
    columns = wards(num_small=0)
    columns["cholesterol"][17] = "24o"
    config = TableConfig(target="ill")
    shown = describe_tables(tables_of(columns), config, np.random.default_rng(seed))
    notes = [str(one) for one in shown.findings if "24o" in str(one)]
    assert len(notes) == 1
    assert "'cholesterol' of client 'ward 00'" in notes[0]
    assert "taken as missing" in notes[0]
