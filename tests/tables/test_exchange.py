"""What clients send: merged sums and counts are those of all rows, and so is the preparation."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from equipoise.data.tables.choices import TableChoices
from equipoise.data.tables.clients import together
from equipoise.data.tables.exchange import merge, statistics_of
from equipoise.data.tables.federate import federate
from equipoise.data.tables.preparation import Category, Date, Number, Preparation
from equipoise.data.tables.rule import Rule
from equipoise.data.tables.statistics import Moments, Statistics, column_statistics, merged, moments
from equipoise.data.tables.table import Table, Tables, table_of
from equipoise.data.tables.typed import of_json, to_json
from equipoise.utils.errors import UsageError

RULE, CHOICES = Rule("ill"), TableChoices(target="ill")


def clinic(seed: int, n: int = 200) -> Table:
    rng = np.random.default_rng(seed)
    age, gone = rng.normal(50 + seed, 10, n).round(1), rng.random(n) < 0.1
    return table_of(
        {
            "age": np.where(gone, np.nan, age),
            "stage": rng.integers(1, 5, n),
            "sex": rng.choice(["f", "m"], n),
            "town": rng.choice(
                ["Bern", "Basel", "Genf", f"village {seed}"], n, p=[0.5, 0.3, 0.195, 0.005]
            ),
            "seen": (np.datetime64("2020-01-01") + rng.integers(0, 900, n)).astype("datetime64[s]"),
            "ill": np.where(age > 50, "yes", "no"),
        }
    )


CLINICS = {name: clinic(seed, 60 + 40 * seed) for seed, name in enumerate(("a", "b", "c"))}


def test_moments_by_hand() -> None:
    whole = moments(np.array([1.0, 2, np.nan, 6]))
    assert (whole.count, whole.mean, whole.squares) == (3, 3.0, 14.0)
    parts = moments(np.array([1.0])) + Moments() + moments(np.array([2.0, 6]))
    assert (parts.count, parts.mean, parts.squares) == (3, 3.0, 14.0)
    assert whole.deviation == pytest.approx(np.std([1, 2, 6]))


def test_moments_stay_exact_far_from_zero() -> None:
    """A plain sum of squares would lose everything: 1e18 leaves no digit for a deviation of 1."""
    values = 1e9 + np.array([0.0, 1, 2, 3])
    assert (moments(values[:1]) + moments(values[1:])).deviation == pytest.approx(np.sqrt(1.25))


@pytest.mark.parametrize(
    ("values", "median"),
    [
        ([1, 2, 3], 2),
        ([1, 2, 3, 10], 2.5),
        ([5], 5),
        ([1, 1, 1, 9], 1),
        ([2013, 2013, 2014], 2013),
        ([-3, 0, 4, 4], 2),
    ],
)
def test_medians_from_counts(values: list[float], median: float) -> None:
    about = column_statistics("x", table_of({"x": values}).columns["x"])
    assert abs(about.median - median) <= min(0.005 * abs(median), about.numbers.deviation)


def test_the_counts_of_all_are_those_of_all_rows() -> None:
    whole = together(list(CLINICS.values()))
    for name, column in whole.columns.items():
        apart = merged([column_statistics(name, table.columns[name]) for table in CLINICS.values()])
        pooled = column_statistics(name, column)
        assert apart.numbers.mean == pytest.approx(pooled.numbers.mean, rel=1e-12)
        assert apart.numbers.squares == pytest.approx(pooled.numbers.squares, rel=1e-12)
        for date, other in zip(apart.dates, pooled.dates, strict=True):
            assert (date.form, date.timed, date.days.count) == (
                other.form,
                other.timed,
                other.days.count,
            )
            assert date.days.mean == pytest.approx(other.days.mean, rel=1e-12)
        same = {"numbers": Moments(), "dates": (), "different": 0}
        assert replace(apart, **same) == replace(pooled, **same)


def test_the_preparation_of_all_is_that_of_one_who_holds_everything() -> None:
    apart, _ = merge(
        [statistics_of(name, table, RULE) for name, table in CLINICS.items()], RULE, CHOICES
    )
    whole = together(list(CLINICS.values()))
    pooled, _ = merge([statistics_of("all", whole, RULE)], RULE, CHOICES)
    assert apart is not None
    assert pooled is not None
    assert apart.features == pooled.features
    assert apart.target == pooled.target
    np.testing.assert_allclose(apart.prepare(whole), pooled.prepare(whole), rtol=1e-6, atol=1e-6)
    kinds = {column.name: type(column) for column in apart.columns}
    assert kinds == {
        "age": Number,
        "stage": Category,
        "sex": Category,
        "town": Category,
        "seen": Date,
    }


def test_no_row_is_in_a_message() -> None:
    """Names that nearly every row has of its own are not told, nor is any order of rows."""
    table = table_of(
        {"name": [f"Person {i}" for i in range(50)], "x": np.arange(50) / 7, "ill": ["a", "b"] * 25}
    )
    message = statistics_of("site", table, RULE)
    assert "Person" not in to_json(message)
    again = statistics_of("site", table.take(np.random.default_rng(0).permutation(50)), RULE)
    same = json.loads(to_json(again))
    for column, other in zip(same["columns"], json.loads(to_json(message))["columns"], strict=True):
        column["ordered"] = other["ordered"]
        column["numbers"] = other["numbers"] = (
            None  # sums in another order differ in their last digit
        )
    assert [c["rounded"] for c in same["columns"]] == [
        c["rounded"] for c in json.loads(to_json(message))["columns"]
    ]


def test_messages_and_preparations_come_back_from_json() -> None:
    message = statistics_of("a", CLINICS["a"], RULE)
    assert of_json(Statistics, to_json(message), "the message") == message
    made = federate(Tables(CLINICS), CHOICES, np.random.default_rng(0))
    assert of_json(Preparation, made.preparation.write(), "it") == made.preparation
    assert made.down == 3 * len(made.preparation.write().encode())
    assert made.up > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.pop("rule"),
        lambda tree: tree.update(more=1),
        lambda tree: tree.update(clients="a"),
        lambda tree: tree["columns"][0].update(type="Elephant"),
        lambda tree: tree["columns"][0].update(median="high"),
        lambda tree: tree["columns"][0].update(missing=1),
        lambda tree: tree["target"].update(kind="magic"),
    ],
)
def test_a_preparation_that_was_edited_is_refused(change, tmp_path) -> None:
    made = federate(Tables(CLINICS), CHOICES, np.random.default_rng(0))
    tree = json.loads(made.preparation.write())
    change(tree)
    (tmp_path / "preparation.json").write_text(json.dumps(tree))
    with pytest.raises(UsageError, match="damaged or of another version"):
        Preparation.read(tmp_path / "preparation.json")


def test_the_server_s_rows_alone_can_decide_and_then_clients_tell_nothing() -> None:
    choices = replace(CHOICES, prepare_by="server")
    made = federate(Tables(CLINICS, CLINICS["c"]), choices, np.random.default_rng(0))
    alone, _ = merge([statistics_of("server", CLINICS["c"], RULE)], RULE, choices)
    assert alone is not None
    assert made.preparation == replace(alone, clients=("a", "b", "c"))
    assert made.up == 0
    assert made.down == 3 * len(made.preparation.write().encode())
    lending = federate(Tables(CLINICS), choices, np.random.default_rng(0))
    lent = sum(len(lending.data.server(name)[1]) for name in ("public", "test"))
    assert (lending.up, lent) == (0, sum(round(0.1 * len(table)) for table in CLINICS.values()))
    assert (
        lending.preparation.columns[0]
        != federate(Tables(CLINICS), CHOICES, np.random.default_rng(0)).preparation
    )
    healthy = CLINICS["c"].take(np.flatnonzero(CLINICS["c"].columns["age"].number < 40))
    with pytest.raises(UsageError, match="the target has one value"):
        federate(Tables(CLINICS, healthy), choices, np.random.default_rng(0))


def test_clients_whose_columns_differ_are_told_apart() -> None:
    messages = [
        statistics_of("a", CLINICS["a"], RULE),
        statistics_of("b", CLINICS["b"].without(frozenset({"age"})), RULE),
    ]
    preparation, findings = merge(messages, RULE, CHOICES)
    assert preparation is None
    assert [str(f) for f in findings if f.problem] == [
        "column 'age' of client 'a': not every client has it"
    ]
