"""What clients send: merged sums and counts are those of all rows, and so is the preparation."""

from __future__ import annotations

import json
from dataclasses import replace as replace_options

import numpy as np
import pytest
from msgspec.structs import replace

from equipoise.data.tabular.columns import column_from_values
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.exchange import compute_statistics, fit_columns
from equipoise.data.tabular.io import table_from_values
from equipoise.data.tabular.pipeline import build_federation
from equipoise.data.tabular.preprocessing import Category, Date, Number, Preprocessor
from equipoise.data.tabular.statistics import (
    ClientStatistics,
    Moments,
    column_statistics,
    merge_columns,
    moments,
    round_to_bins,
)
from equipoise.data.tabular.table import ClientTables, Table, concat_tables
from equipoise.data.tabular.target_spec import Condition, TargetSpec
from equipoise.utils.errors import UsageError
from equipoise.utils.record import from_json, to_json

SPEC = TargetSpec(Condition("ill"))
CONFIG = TableConfig(target="ill")


def clinic(seed: int, n: int = 200) -> Table:
    rng = np.random.default_rng(seed)
    age, gone = rng.normal(50 + seed, 10, n).round(1), rng.random(n) < 0.1
    return table_from_values(
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
    assert (whole.count, whole.mean, whole.m2) == (3, 3.0, 14.0)
    parts = moments(np.array([1.0])) + Moments() + moments(np.array([2.0, 6]))
    assert (parts.count, parts.mean, parts.m2) == (3, 3.0, 14.0)
    assert whole.std == pytest.approx(np.std([1, 2, 6]))


def test_moments_stay_exact_far_from_zero() -> None:
    """A plain sum of squares would lose everything: 1e18 leaves no digit for a deviation of 1."""
    values = 1e9 + np.array([0.0, 1, 2, 3])
    assert (moments(values[:1]) + moments(values[1:])).std == pytest.approx(np.sqrt(1.25))


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
    about = column_statistics("x", table_from_values({"x": values}).columns["x"])
    assert abs(about.median - median) <= min(0.005 * abs(median), about.numbers.std)


def test_bins_are_those_of_three_written_digits() -> None:
    rng = np.random.default_rng(0)
    numbers = np.concatenate(
        [
            rng.normal(size=5000) * 10.0 ** rng.integers(-30, 30, 5000),
            rng.integers(-99999, 99999, 5000) / 100,
            [0.0, 1.0, 12.25, 12.35, 999.5, 9995.0, 1e22, 1e23, 5e-324, 1.7e308, 99.95, -0.125],
            10.0 ** np.arange(-22, 23),
        ]
    )
    expected = [float(f"{number:.2e}") for number in numbers.tolist()]
    np.testing.assert_array_equal(round_to_bins(numbers), expected)


def test_the_counts_of_all_are_those_of_all_rows() -> None:
    whole = concat_tables(list(CLINICS.values()))
    for name, column in whole.columns.items():
        apart = merge_columns(
            [column_statistics(name, table.columns[name]) for table in CLINICS.values()]
        )
        pooled = column_statistics(name, column)
        assert apart.numbers.mean == pytest.approx(pooled.numbers.mean, rel=1e-12)
        assert apart.numbers.m2 == pytest.approx(pooled.numbers.m2, rel=1e-12)
        for date, other in zip(apart.dates, pooled.dates, strict=True):
            assert (date.format, date.has_time, date.days.count) == (
                other.format,
                other.has_time,
                other.days.count,
            )
            assert date.days.mean == pytest.approx(other.days.mean, rel=1e-12)
        same = {"numbers": Moments(), "dates": (), "num_unique": 0, "num_pairs": 0, "ranges": ()}
        assert replace(apart, **same) == replace(pooled, **same)


def test_ranges_are_of_each_client_and_of_each_origin_in_a_pool() -> None:
    column = column_from_values([1, 5, 1234, 7, 7, 1236], "it")
    origin = np.array([0, 0, 1, 2, 2, 1])
    assert column_statistics("it", column).ranges == ((1.0, 1240.0),)
    # The rounded ends of origin 1 are 1230 and 1240; origin 2 has one number only.
    assert column_statistics("it", column, origin).ranges == ((1.0, 5.0), (1230.0, 1240.0))
    empty = column_from_values([np.nan], "it")
    assert column_statistics("it", empty).ranges == ()


def test_the_preparation_of_all_is_that_of_one_who_holds_everything() -> None:
    messages = [compute_statistics(name, table, SPEC, CONFIG) for name, table in CLINICS.items()]
    apart = fit_columns(messages, SPEC, CONFIG).preprocessor
    whole = concat_tables(list(CLINICS.values()))
    pooled = fit_columns(
        [compute_statistics("all", whole, SPEC, CONFIG)], SPEC, CONFIG
    ).preprocessor
    assert apart is not None
    assert pooled is not None
    assert apart.features == pooled.features
    assert apart.target == pooled.target
    np.testing.assert_allclose(
        apart.transform(whole), pooled.transform(whole), rtol=1e-6, atol=1e-6
    )
    kinds = {column.name: type(column) for column in apart.encoders}
    assert kinds == {
        "age": Number,
        "stage": Category,
        "sex": Category,
        "town": Category,
        "seen": Date,
    }


def test_no_row_is_in_a_message() -> None:
    """Names that nearly every row has of its own are not told, nor is any order of rows."""
    table = table_from_values(
        {"name": [f"Person {i}" for i in range(50)], "x": np.arange(50) / 7, "ill": ["a", "b"] * 25}
    )
    message = compute_statistics("site", table, SPEC, CONFIG)
    assert "Person" not in to_json(message)
    again = compute_statistics(
        "site", table.take(np.random.default_rng(0).permutation(50)), SPEC, CONFIG
    )
    same = json.loads(to_json(again))
    for column, other in zip(same["columns"], json.loads(to_json(message))["columns"], strict=True):
        column["numbers"] = other["numbers"] = (
            None  # sums in another order differ in their last digit
        )
    assert [c["histogram"] for c in same["columns"]] == [
        c["histogram"] for c in json.loads(to_json(message))["columns"]
    ]


def test_messages_and_preparations_come_back_from_json() -> None:
    message = compute_statistics("a", CLINICS["a"], SPEC, CONFIG)
    assert from_json(ClientStatistics, to_json(message), "the message") == message
    made = build_federation(ClientTables(CLINICS), CONFIG, np.random.default_rng(0))
    assert from_json(Preprocessor, made.preprocessor.to_json(), "it") == made.preprocessor
    assert made.download_bytes == 3 * len(made.preprocessor.to_json().encode())
    assert made.upload_bytes > 0


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
    made = build_federation(ClientTables(CLINICS), CONFIG, np.random.default_rng(0))
    tree = json.loads(made.preprocessor.to_json())
    change(tree)
    (tmp_path / "preparation.json").write_text(json.dumps(tree))
    with pytest.raises(UsageError, match="damaged or of another version"):
        Preprocessor.load(tmp_path / "preparation.json")


def test_the_server_s_rows_alone_can_decide_and_then_clients_tell_nothing() -> None:
    config = replace_options(CONFIG, preprocess_from="server")
    made = build_federation(ClientTables(CLINICS, CLINICS["c"]), config, np.random.default_rng(0))
    messages = [compute_statistics("server", CLINICS["c"], SPEC, CONFIG)]
    alone = fit_columns(messages, SPEC, config).preprocessor
    assert alone is not None
    assert made.preprocessor == replace(alone, clients=("a", "b", "c"))
    assert made.upload_bytes == 0
    assert made.download_bytes == 3 * len(made.preprocessor.to_json().encode())
    lending = build_federation(ClientTables(CLINICS), config, np.random.default_rng(0))
    lent = sum(len(lending.data.server(name)[1]) for name in ("public", "test"))
    assert (lending.upload_bytes, lent) == (
        0,
        sum(round(0.1 * len(table)) for table in CLINICS.values()),
    )
    assert (
        lending.preprocessor.encoders[0]
        != build_federation(ClientTables(CLINICS), CONFIG, np.random.default_rng(0)).preprocessor
    )
    healthy = CLINICS["c"].take(np.flatnonzero(CLINICS["c"].columns["age"].numbers < 40))
    with pytest.raises(UsageError, match="the target has one value"):
        build_federation(ClientTables(CLINICS, healthy), config, np.random.default_rng(0))


def test_clients_whose_columns_differ_are_told_apart() -> None:
    messages = [
        compute_statistics("a", CLINICS["a"], SPEC, CONFIG),
        compute_statistics("b", CLINICS["b"].drop(frozenset({"age"})), SPEC, CONFIG),
    ]
    fitted = fit_columns(messages, SPEC, CONFIG)
    assert fitted.preprocessor is None
    assert [str(f) for f in fitted.diagnostics if f.is_problem] == [
        "column 'age' of client 'b': it is missing here, and 1 of 2 clients have it: "
        "add the column, or --ignore-columns age"
    ]
