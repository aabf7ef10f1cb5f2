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
from equipoise.data.tabular.pipeline import TabularFederation, build_federation, prepare_tables
from equipoise.data.tabular.table import ClientTables, Table
from equipoise.report.data_description import suggested_command
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


def federation(columns: dict[str, list[object]], **choices: str | int) -> TabularFederation:
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


def test_a_text_among_the_numbers_of_the_target_is_told_by_its_row() -> None:
    rng = np.random.default_rng(2)
    columns: dict[str, list[object]] = {
        "ward": ["a"] * 30 + ["b"] * 30,
        "age": [float(v) for v in rng.normal(50, 9, 60)],
        "stay": [float(v) for v in rng.normal(9, 2, 60).round(1)],
    }
    columns["stay"][33] = "abs"
    columns["stay"][40] = "unknown"  # which means missing
    config = TableConfig(target="stay", target_type="regression")
    shown = describe_tables(tables_of(columns), config, np.random.default_rng(3))
    notes = [str(note) for note in shown.findings]
    assert "column 'stay' of client 'b': 'abs' is no number: row 34 is left out" in notes
    assert len(notes) == 1
    assert sum(len(t) for t in prepared_rows(columns, config)) == 58


def prepared_rows(columns: dict[str, list[object]], config: TableConfig) -> list[Table]:
    prepared = prepare_tables(tables_of(columns), config, np.random.default_rng(3))
    return list(prepared.tables.clients.values())


def test_a_target_of_texts_that_should_be_numbers_is_the_problem() -> None:
    columns = wards()
    columns["sex"] = (["f", "m"] * len(columns["ward"]))[: len(columns["ward"])]
    with pytest.raises(UsageError, match="holds 'f', 'm', which are no numbers"):
        federation(columns, target="sex", target_type="regression")


def test_classes_that_differ_in_capitals_alone_are_a_problem_unless_confirmed() -> None:
    columns = wards()
    columns["ill"] = ["yes" if k % 3 else "no" for k in range(len(columns["ward"]))]
    columns["ill"][4] = "Yes"
    with pytest.raises(UsageError, match=r"alone: 'Yes' and 'yes'\. Correct .*\"ill != no\""):
        federation(columns)
    assert federation(columns, target="ill != no").data.classes == 2
    confirmed = federation(columns, target_type="classification")
    assert confirmed.preprocessor.target.classes == ("Yes", "no", "yes")


@pytest.mark.parametrize(("num_ill", "is_rare"), [(20, True), (21, False)])
def test_a_rare_class_is_told_and_the_command_asks_for_auc(num_ill: int, is_rare: bool) -> None:
    columns: dict[str, list[object]] = {
        "ward": ["a", "b"] * 50,
        "age": [float(v) for v in np.random.default_rng(2).normal(50, 9, 100)],
        "ill": ["yes"] * num_ill + ["no"] * (100 - num_ill),
    }
    config = TableConfig(target="ill")
    shown = describe_tables(tables_of(columns), config, np.random.default_rng(3))
    command = "equipoise compare --data x.csv --target ill"
    given = {"data": "x.csv", "target": "ill"}
    told = any("80 % of the rows are of class 'no'" in str(found) for found in shown.findings)
    assert told == is_rare
    assert suggested_command(shown, given) == command + (" --metric auc" if is_rare else "")
    asked = suggested_command(shown, {**given, "metric": "acc"})
    assert asked == command + " --metric acc"


def families(num_sites: int = 15) -> dict[str, list[object]]:
    """Families with one to three children each, numbered through the villages one by one."""
    rng = np.random.default_rng(5)
    names = ("ward", "ill", "kin", "weight", "salary", "height_of_site")
    columns: dict[str, list[object]] = {name: [] for name in names}
    family = 1000
    for site in range(num_sites):
        for _ in range(8):
            family += int(rng.integers(1, 4))  # some families are not in the table
            for _ in range(int(rng.integers(1, 4))):
                columns["ward"].append(f"w{site}")
                columns["ill"].append(int(rng.integers(2)))
                columns["kin"].append(family)
                columns["weight"].append(int(rng.integers(2000, 4500)))
                # Sites pay in two currencies: within each their ranges overlap.
                unit = 1 if site % 2 else 1000
                columns["salary"].append(unit * int(rng.integers(100, 200)))
                columns["height_of_site"].append(100 * site)
    return columns


@pytest.mark.parametrize("small_clients", ["pool", "keep"])
def test_numbers_of_families_are_identifiers_though_they_repeat(small_clients: str) -> None:
    found = federation(families(), small_clients=small_clients, min_rows=16).preprocessor
    assert "numbers rows or people" in {c.name: c.reason for c in found.dropped}["kin"]
    inputs = {encoder.name for encoder in found.encoders}
    assert inputs == {"weight", "salary", "height_of_site"}
    kept = federation(families(), numbers="kin").preprocessor
    assert "kin" in {encoder.name for encoder in kept.encoders}


def test_few_sites_with_ranges_of_their_own_may_have_measurements() -> None:
    inputs = {e.name for e in federation(families(num_sites=8)).preprocessor.encoders}
    assert "kin" in inputs


def test_a_number_of_the_mother_is_a_code_in_any_order() -> None:
    columns = families()
    columns["mom"] = list(np.random.default_rng(1).permutation(columns["kin"]))
    reasons = {c.name: c.reason for c in federation(columns).preprocessor.dropped}
    assert "people" in reasons["mom"]


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


def survival(status: list[object], **choices: str | int) -> TabularFederation:
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
