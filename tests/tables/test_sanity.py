"""Mistakes in tables that are named before training: from the sums that clients send."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.exchange import merge_messages, summarise_site
from equipoise.data.tabular.io import table_from_values, tables_from_values
from equipoise.data.tabular.pipeline import build_federation
from equipoise.data.tabular.sanity import associations, count_shared_rows
from equipoise.data.tabular.target_spec import Condition, TargetSpec

N = 60


def clinic(seed: int, n: int = N, **columns: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    ill = rng.integers(0, 2, n)
    made = {"age": rng.normal(60, 8, n), "sex": rng.choice(["f", "m"], n), "ill": ill}
    return {**made, **{name: make(rng, ill) for name, make in columns.items()}}


def notes(clients: dict[str, dict[str, Any]], **choices: str) -> list[str]:
    config = TableConfig(**{"target": "ill", **choices})
    made = build_federation(tables_from_values(clients), config, np.random.default_rng(0))
    return list(made.notes)


def leak(rng: np.random.Generator, ill: np.ndarray) -> np.ndarray:
    return np.where(ill == 1, rng.uniform(20, 40, len(ill)), 45.0)


def test_sums_by_hand() -> None:
    table = table_from_values(
        {"x": [1.0, 2.0, 2.0, 3.0, None], "c": ["a", "a", "b", "b", "b"], "ill": [0, 0, 1, 1, 1]}
    )
    spec = TargetSpec(Condition("ill"))
    x, c = associations(table, spec, "classification")
    # Values 1, 2 | 2, 3, missing (lowest): 1.5, 2 and 0 of the two rows of class 0 are below.
    assert (x.column, x.label, x.sums) == ("x", "1", (3.5, 6.0))
    assert c.sums == (6.0, 6.0)  # both other rows with 'b' are of class 1, with 'a' none is
    y = TargetSpec(Condition("x"))
    products = associations(table.drop(frozenset({"c"})), y, "regression")[0]
    # Four rows with a number; ill is 0, 0, 1, 1 around 0.5, x is 1, 2, 2, 3 around 2.
    assert products.sums == pytest.approx((1.0, 1.0, 2.0, 4.0))


def test_a_column_that_gives_the_answer_is_named() -> None:
    clients = {name: clinic(i, result=leak) for i, name in enumerate("abc")}
    found = [note for note in notes(clients) if "alone nearly decides" in note]
    assert found == [
        "column 'result': alone nearly decides the target (AUC 1.000). Is it known before the "
        "target is? If not, leave it out: --ignore-columns result"
    ]
    text = {
        name: clinic(i, letter=lambda rng, ill: np.where(ill, "urgent", "routine"))
        for i, name in enumerate("abc")
    }
    assert any("column 'letter': alone nearly decides" in note for note in notes(text))
    assert not notes({name: clinic(i) for i, name in enumerate("abc")})
    same = {
        name: clinic(i, test=lambda rng, ill: rng.choice(["pcr", "pcr+"], N, p=[0.95, 0.05]))
        for i, name in enumerate("abc")
    }
    assert not notes(same)


def test_a_missing_value_may_give_the_answer_too() -> None:
    clients = {
        name: clinic(i, died_on=lambda rng, ill: np.where(ill, 2000.0 + rng.integers(0, 9), np.nan))
        for i, name in enumerate("abc")
    }
    assert any("'died_on': alone nearly decides" in note for note in notes(clients))


def test_a_number_that_is_the_target_in_another_unit() -> None:
    clients = {}
    for i, name in enumerate("abc"):
        rows = clinic(i)
        rows["price"] = np.random.default_rng(i).uniform(1e5, 9e5, N)
        rows["price_eur"] = rows["price"] * 0.92 + 3.5
        clients[name] = rows
    found = notes(clients, target="price", target_type="regression")
    assert found[0].startswith("column 'price_eur': alone nearly decides the target (R2 1.000)")


def test_other_units_words_and_lonely_columns() -> None:
    clients = {name: clinic(i) for i, name in enumerate("abcd")}
    for i, rows in enumerate(clients.values()):
        rows["height"] = np.random.default_rng(i).normal(170, 9, N)
        rows["smoker"] = np.random.default_rng(i).choice(["yes", "no"], N)
        rows["ca"] = np.random.default_rng(i).normal(0, 1, N) if i == 0 else [None] * N
    clients["c"]["height"] = np.asarray(clients["c"]["height"]) / 100
    clients["d"]["smoker"] = ["1", "2"] * (N // 2)
    clients["b"]["ill"] = np.ones(N, np.int64)
    found = notes(clients)
    assert any(n.startswith("column 'height' of client 'c': has numbers around 1.7") for n in found)
    assert any(
        n.startswith("column 'smoker' of client 'd': holds '1', '2', which no") for n in found
    )
    assert any("of 4 clients, few have values in 'ca' (1)" in n for n in found)
    assert any("1 client has rows of one class only ('b')" in n for n in found)


def test_duplicates_between_training_and_test() -> None:
    rows = clinic(0, 200)
    twice = {name: np.concatenate([np.asarray(v), np.asarray(v)]) for name, v in rows.items()}
    found = notes({"a": twice, "b": clinic(1)})
    assert any("test rows equal a training row in every input and the target" in n for n in found)
    alike = {"sex": ["f", "m"] * 100, "ill": [0, 1] * 100}
    table = table_from_values(alike)
    every = np.arange(200)
    assert count_shared_rows([table], ["sex", "ill"], every[:100], every[100:]) == 0


def test_sites_that_are_apart_find_the_same(tmp_path: Path) -> None:
    texts = {}
    for i, name in enumerate(("north", "south", "west")):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("train", "test"):
            rows = clinic(i, result=leak)
            with open(folder / f"{file}.csv", "w", newline="") as stream:
                writer = csv.writer(stream)
                writer.writerow(rows)
                writer.writerows(zip(*map(list, rows.values()), strict=True))
        texts[name] = summarise_site(folder, name, TableConfig(target="ill"))
    _, found = merge_messages(texts, TableConfig(target="ill"))
    assert any("column 'result': alone nearly decides the target (AUC 1.000)" in n for n in found)
    assert any("180 test rows equal a training row" in n for n in found)


def test_a_run_says_it_before_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, name in enumerate("abc"):
        rows = clinic(i, result=leak)
        with open(tmp_path / f"{name}.csv", "w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(rows)
            writer.writerows(zip(*map(list, rows.values()), strict=True))
    given = ["--data", str(tmp_path), "--target", "ill"]
    assert main(["data", "describe", *given]) == 0
    assert "alone nearly decides" in capsys.readouterr().out
    assert main(["run", *given, "--rounds", "1", "--out", str(tmp_path / "run")]) == 0
    assert "note: column 'result': alone nearly decides" in capsys.readouterr().err


def test_a_site_that_is_spelled_in_two_ways_is_named() -> None:
    clients = {name: clinic(i) for i, name in enumerate(("North Ward", "northward", "west"))}
    found = notes(clients)
    assert found == [
        "clients 'North Ward' and 'northward' differ in capital letters or spaces alone: if they "
        "are one site, give it one name"
    ]


def test_categories_that_are_spelled_in_two_ways_are_named() -> None:
    clients = {name: clinic(i) for i, name in enumerate("abc")}
    clients["b"]["sex"] = ["F", "m"] * (N // 2)
    found = notes(clients)
    assert found == [
        "column 'sex': 'F' and 'f' differ in capital letters or spaces alone: are they the same?"
    ]


def test_places_inside_clients_are_one_note() -> None:
    clients = {
        name: clinic(i, ward=lambda rng, ill, name=name: rng.choice([f"{name}1", f"{name}2"], N))
        for i, name in enumerate("abcd")
    }
    found = notes(clients)
    assert len(found) == 1
    assert found[0].startswith(
        "column 'ward': 4 of 4 clients have values that no other client has: either it is coded"
    )


def test_another_coding_is_seen_in_few_rows_where_values_are_few() -> None:
    clients = {name: clinic(i) for i, name in enumerate("abc")}
    clients["d"] = clinic(3, 16)
    clients["d"]["sex"] = ["1", "2"] * 8
    assert notes(clients) == [
        "column 'sex' of client 'd': holds '1', '2', which no other client has: is it coded alike?"
    ]
    rng = np.random.default_rng(0)
    for rows in clients.values():  # of many values, some are only here by chance
        rows["sex"] = [f"v{value}" for value in rng.integers(0, 20, len(rows["age"]))]
    clients["d"]["sex"] = ["1", "2"] * 8
    assert not notes(clients)


def write_folder(path: Path, clients: dict[str, dict[str, Any]]) -> Path:
    """Write one CSV file for each client."""
    path.mkdir()
    for name, rows in clients.items():
        with open(path / f"{name}.csv", "w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(rows)
            writer.writerows(zip(*map(list, rows.values()), strict=True))
    return path


def test_a_comparison_says_it_once_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = {name: clinic(i, result=leak) for i, name in enumerate("abc")}
    folder = write_folder(tmp_path / "sites", clients)
    given = ["--data", str(folder), "--target", "ill", "--rounds", "1", "--methods", "fedavg,local"]
    assert main(["compare", *given, "--seeds", "2", "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().err
    assert said.count("note: column 'result': alone nearly decides the target") == 1
    assert said.index("alone nearly decides") < said.index("round 1/1")


def test_describe_names_a_leak_although_the_target_is_not_clear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = {}
    for i, name in enumerate("abc"):
        rows = clinic(i)
        rows["price"] = np.random.default_rng(i).uniform(1e5, 9e5, N).round(2)
        rows["tax"] = (rows["price"] / 100).round(2)
        clients[name] = rows
    folder = write_folder(tmp_path / "sites", clients)
    assert main(["data", "describe", "--data", str(folder), "--target", "price"]) == 2
    said = capsys.readouterr().out
    assert "column 'tax': alone nearly decides the target (R2 1.000)" in " ".join(said.split())
    assert said.splitlines()[-1].endswith("--target price --target-type regression")
