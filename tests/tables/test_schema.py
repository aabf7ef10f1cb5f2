"""What columns are taken for, from counts alone; and what new rows become."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.data.tabular.config import ColumnConfig, TableConfig
from equipoise.data.tabular.diagnostics import Diagnostic
from equipoise.data.tabular.exchange import FittedColumns, compute_statistics, fit_columns
from equipoise.data.tabular.io import table_from_values
from equipoise.data.tabular.preprocessing import (
    Category,
    Date,
    DroppedColumn,
    Encoder,
    Number,
    Preprocessor,
)
from equipoise.data.tabular.target_spec import infer_target, parse_target
from equipoise.utils.errors import UsageError

N = 120


def fitted_columns(values: dict[str, list[object]], **choices: str) -> FittedColumns:
    """Two clients with these columns; the first half of the rows is the first one's."""
    table = table_from_values(
        {**values, "ill": ["a", "b"] * (N // 2), "more": np.linspace(0, 1, N) ** 2}
    )
    made = TableConfig(**{"target": "ill", **choices})
    spec = parse_target(made, table.columns, "it")
    halves = [table.take(np.arange(N // 2)), table.take(np.arange(N // 2, N))]
    messages = [
        compute_statistics(name, half, spec, made) for name, half in zip("xy", halves, strict=True)
    ]
    return fit_columns(messages, spec, made)


def prepared(values: dict[str, list[object]], **choices: str) -> Preprocessor:
    fitted = fitted_columns(values, **choices)
    if fitted.preprocessor is None:
        raise UsageError("; ".join(str(found) for found in fitted.diagnostics if found.is_problem))
    return fitted.preprocessor


def noted(values: dict[str, list[object]], **choices: str) -> list[Diagnostic]:
    return [found for found in fitted_columns(values, **choices).diagnostics if found.column]


def column(values: list[object], **choices: str) -> Encoder | DroppedColumn:
    made = prepared({"c": values}, **choices)
    return next(found for found in (*made.encoders, *made.dropped) if found.name == "c")


RNG = np.random.default_rng(0)
NUMBERS = [float(v) for v in RNG.normal(100, 15, N).round(1)]


def test_numbers() -> None:
    found = column(NUMBERS)
    assert isinstance(found, Number)
    assert found.mean == pytest.approx(np.mean(NUMBERS))
    assert found.scale == pytest.approx(np.std(NUMBERS))
    assert found.median == pytest.approx(np.median(NUMBERS), rel=0.005)
    assert not found.marks_missing
    plain = column(NUMBERS, standardise="none")
    assert isinstance(plain, Number)
    assert (plain.mean, plain.scale) == (0, 1)


def test_numbers_that_a_site_wrote_as_text() -> None:
    comma = [f"{v:.1f}".replace(".", ",") for v in NUMBERS[: N // 2]]
    found = column([*comma, *NUMBERS[N // 2 :]])
    assert isinstance(found, Number)
    assert found.mean == pytest.approx(np.mean(NUMBERS))
    gaps = [*NUMBERS[: N - 5], "n/a", "?", "-", "unknown", "missing"]
    assert column(gaps) == column([*NUMBERS[: N - 5], *[None] * 5])


def test_words_among_numbers_are_missing_where_few_and_refused_where_a_site_has_only_them() -> None:
    few = column([*NUMBERS[: N - 3], "high", "<5", "high"])
    assert isinstance(few, Number)
    assert few.marks_missing
    with pytest.raises(
        UsageError, match=r"column 'c' of client 'y': 10 cells are no numbers \('high'\): it holds"
    ):
        column([*NUMBERS[: N // 2], *[None] * (N // 2 - 10), *["high"] * 10], numbers="c")


def test_few_whole_numbers_are_categories_unless_told_otherwise() -> None:
    cp = [1.0, 2.0, 4.0] * (N // 3)
    found = column(cp)
    assert isinstance(found, Category)
    assert found.values == ("1", "2", "4")
    assert found.features == ("c = 1", "c = 2", "c = 4")
    assert isinstance(column(cp, numbers="c"), Number)
    assert isinstance(column([v % 12 for v in range(N)]), Number)  # as many as there are months
    assert isinstance(column([v % 12 for v in range(N)], categories="c"), Category)
    assert isinstance(column([v / 2 for v in cp]), Number)  # halves are measurements


def test_two_values_are_one_column() -> None:
    found = column(["m", "f"] * (N // 2))
    assert isinstance(found, Category)
    assert found.features == ("c = m",)
    made = prepared({"c": [0, 1] * (N // 2)})
    assert made.features == ("c = 1", "more")
    assert made.transform({"c": [0, 1], "more": [0, 0]})[:, 0].tolist() == [0, 1]


def test_rare_categories_are_pooled_and_new_ones_are_nothing_or_other() -> None:
    found = column([*["a", "b", "c"] * 39, "rare", "odd", "odd"])
    assert isinstance(found, Category)
    assert found.values == ("a", "b", "c")
    assert found.features[-1] == "c = (other)"
    made = prepared({"c": ["a", "b", "c"] * (N // 3)})
    new = made.transform({"c": ["b", "never seen", None], "more": [0, 0, 0]})
    assert new[:, :3].tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]  # missing is the most frequent


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([7] * N, "one value"),
        (["same"] * N, "one value"),
        ([None] * N, "empty"),
        ([f"P{i:04}" for i in range(N)], "names rows or people"),
        ([f"The patient came {i} times" for i in range(N)], "free text"),
        (list(range(1000, 1000 + N)), "numbers rows"),
    ],
)
def test_columns_that_are_left_out_with_a_word(values: list[object], why: str) -> None:
    found = column(values)
    assert isinstance(found, DroppedColumn)
    assert why in found.reason


def test_names_of_columns_help_to_know_identifiers() -> None:
    numbers = [int(v) for v in RNG.permutation(90_000)[:N]]
    for name in ("patient_id", "PatientID", "id", "mrn"):
        assert [left.name for left in prepared({name: numbers}).dropped] == [name]
    ages = [20 + i * 7 % 50 for i in range(N)]
    assert (
        "age_at_index" in prepared({"age_at_index": ages}).features
    )  # has the word, but not a number for each row
    assert "patient_id" in prepared({"patient_id": numbers}, numbers="patient_id").features


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        (["2020-03-01", "2021-12-24"], "year-month-day"),
        (["2020-03-01T10:30:00Z", "2021-12-24 23:00"], "year-month-day"),
        (["1.3.2020", "24.12.2021"], "day/month/year"),
        (["1/3/2020", "24/12/2021"], "day/month/year"),
        (["3/1/2020", "12/24/2021 10:00"], "month/day/year"),
        (["10:30", "23:59:30"], "hour:minute"),
    ],
)
def test_dates_and_times_in_the_forms_people_write(texts: list[object], form: str) -> None:
    found = column(texts * (N // 2))
    assert isinstance(found, Date)
    assert found.format == form


def test_a_date_that_may_be_two_is_asked_about() -> None:
    with pytest.raises(UsageError, match="no date tells whether the day or the month comes first"):
        column(["1/3/2020", "4/5/2021"] * (N // 2))


def test_the_parts_of_a_date_lie_on_circles() -> None:
    made = prepared({"c": ["2020-06-01T00:00", "2020-06-01T12:00", "2020-06-08T18:00"] * (N // 3)})
    assert made.features[:3] == ("c", "c (year sine)", "c (year cosine)")
    x = made.transform({"c": ["2024-01-01T06:00", "2024-01-08T06:00", None], "more": [0, 0, 0]})
    week, day = x[:, 3:5], x[:, 5:7]
    np.testing.assert_allclose(week[0], week[1], atol=1e-6)  # both are Mondays
    np.testing.assert_allclose(day[0], [1, 0], atol=1e-6)  # a quarter of the day is over
    np.testing.assert_allclose(np.hypot(week[:, 0], week[:, 1]), 1, rtol=1e-6)


def test_missing_values_have_a_mark_and_the_median() -> None:
    made = prepared({"c": [*NUMBERS[: N - 10], *[None] * 10]})
    assert made.features == ("c", "more", "c is missing")
    number = made.encoders[0]
    assert isinstance(number, Number)
    x = made.transform({"c": [None, number.mean], "more": [0, 0]})
    assert x[:, 2].tolist() == [1, 0]
    assert x[0, 0] == pytest.approx((number.median - number.mean) / number.scale, rel=1e-5)
    assert x[1, 0] == pytest.approx(0, abs=1e-6)
    with pytest.raises(
        UsageError, match="column 'c': has missing values, which --missing refuse forbids"
    ):
        prepared({"c": [*NUMBERS[: N - 10], *[None] * 10]}, missing="refuse")


def test_rows_that_lack_columns_are_refused_with_all_of_them() -> None:
    made = prepared({"c": NUMBERS})
    assert made.transform({"more": [0.5], "extra": ["x"], "c": [100]}).shape == (1, 2)
    with pytest.raises(UsageError, match="lack columns that the model needs: 'c', 'more'"):
        made.transform({"extra": [1]})


# --- the target -----------------------------------------------------------------------------------


def target(values: list[object], name: str = "t", **choices: str):
    made = prepared({"t": values, "e": [0, 1] * (N // 2)}, **{"target": name, **choices})
    return made.target, made.transform_target(
        table_from_values({"t": values, "e": [0, 1] * (N // 2)})
    )


def test_classes_keep_their_names() -> None:
    found, y = target([0, 1, 2] * (N // 3))
    assert found.classes == ("0", "1", "2")
    assert y[:4].tolist() == [0, 1, 2, 0]
    found, y = target(["ill", "well"] * (N // 2))
    assert found.classes == ("ill", "well")
    assert found.outputs == 2


@pytest.mark.parametrize(
    ("rule", "classes", "y"),
    [
        ("t > 0", ("t <= 0", "t > 0"), [0, 1, 1]),
        ("t>=2", ("t < 2", "t >= 2"), [0, 0, 1]),
        ("t < 1.5", ("t >= 1.5", "t < 1.5"), [1, 1, 0]),
        ("t == 1", ("t != 1", "t == 1"), [0, 1, 0]),
        ("t != 1", ("t == 1", "t != 1"), [1, 0, 1]),
    ],
)
def test_thresholds_make_two_classes(rule: str, classes: tuple[str, ...], y: list[int]) -> None:
    found, found_y = target([0, 1, 2] * (N // 3), rule)
    assert found.classes == classes
    assert found_y[:3].tolist() == y


def test_a_threshold_may_compare_texts_for_equality_only() -> None:
    assert target(["died", "left"] * (N // 2), "t == died")[1][:2].tolist() == [1, 0]
    with pytest.raises(UsageError, match="'died' is no number to compare with"):
        target(["died", "left"] * (N // 2), "t > died")


def test_many_numbers_are_a_question() -> None:
    with pytest.raises(
        UsageError,
        match=r'has \d+ or more different numbers: say --target-type regression, or --target "t > ',
    ):
        target(list(NUMBERS))
    found, y = target(list(NUMBERS), target_type="regression")
    assert (found.kind, found.outputs, found.classes) == ("regression", 1, ())
    assert found.mean == pytest.approx(np.mean(NUMBERS))
    assert found.scale == pytest.approx(np.std(NUMBERS))
    assert y.dtype == np.float32
    found, _ = target([i % 30 for i in range(N)], target_type="classification")
    assert len(found.classes) == 30


def test_whole_numbers_that_become_classes_are_a_note_to_the_user() -> None:
    def notes_of(values: list[object], **options: str) -> list[str]:
        table = table_from_values({"t": values, "x": list(NUMBERS)}, "it")
        config = ColumnConfig(target="t", **options)
        spec = parse_target(config, table.columns, "it")
        message = compute_statistics("a", table, spec, config)
        found, _, notes = infer_target([message], spec, config)
        assert found is not None
        assert not any(note.is_problem for note in notes)
        return [str(note) for note in notes]

    scores = [k % 10 for k in range(N)]
    (note,) = notes_of(scores)
    assert "has 10 different whole numbers, which are taken as classes" in note
    assert '--target-type regression predicts a number, --target "t > 4.5" tells' in note
    assert notes_of(scores, target_type="classification") == []
    assert notes_of([k % 2 for k in range(N)]) == []
    assert notes_of(["a", "b", "c", "d"] * (N // 4)) == []


def test_survival_is_time_and_event() -> None:
    found, y = target(list(NUMBERS), event="e")
    assert (found.kind, found.event) == ("survival", "e")
    assert y.shape == (N, 2)
    assert y[:2, 1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("values", "choices", "says"),
    [
        ([1] * N, {}, "one value only"),
        ([None] * N, {}, "is empty"),
        ([1.5] * N, {"target_type": "regression"}, "one value only"),
        (["a", "b"] * (N // 2), {"target_type": "regression"}, "'a', 'b', which are no numbers"),
        (["a", "b"] * (N // 2), {"event": "e"}, "which are no numbers"),
        ([f"x{i}" for i in range(N)], {}, "too many different values"),
        ([-1.0, 3.5] * (N // 2), {"event": "e"}, "times below 0"),
        (
            [1.0, 3.5] * (N // 2),
            {"event": "c"},
            "column 'c': holds '0', '1', '2', and it is not clear",
        ),
        ([1.0, 3.5] * (N // 2), {"target_type": "survival"}, "--event is not given"),
        ([0, 1] * (N // 2), {"target": "tt"}, "no column 'tt' .did you mean 't'"),
        ([0, 1] * (N // 2), {"categories": "d"}, "no column 'd'.*see --categories"),
        ([0, 1] * (N // 2), {"target_type": "regresion"}, "did you mean 'regression'"),
        ([0, 1] * (N // 2), {"target_type": "regression", "event": "e"}, "event is for survival"),
    ],
)
def test_targets_that_cannot_be(values: list[object], choices: dict[str, str], says: str) -> None:
    columns = {"t": values, "e": [0, 1] * (N // 2), "c": [0, 1, 2, 3] * (N // 4)}
    with pytest.raises(UsageError, match=says):
        prepared(columns, **{"target": "t", **choices})


@pytest.mark.parametrize("name", ["case", "record", "row", "rownames", "obs"])
def test_unique_numbers_of_a_wide_range_are_known_by_their_name(name: str) -> None:
    unique = np.random.default_rng(0).choice(5000, N, replace=False).astype(float).tolist()
    found = {one.name: one for one in prepared({name: unique, "weight": unique}).dropped}
    assert "it numbers rows or people" in found[name].reason
    assert "weight" not in found


@pytest.mark.parametrize(
    ("name", "is_noted"),
    [
        ("schoolNR", True),
        ("school_nr", True),
        ("Ward", True),
        ("teacherId", True),
        ("school", True),
        ("piano", False),
        ("reward", False),
        ("visits", False),
    ],
)
def test_whole_numbers_with_the_name_of_a_code_are_noted(name: str, is_noted: bool) -> None:
    """Thirty values that repeat stay an input: the user hears of it, and says what they are."""
    cells: list[object] = [17 * (row % 30) for row in range(N)]
    notes = [str(note) for note in noted({name: cells}) if note.column == name]
    assert len(notes) == is_noted
    if is_noted:
        assert f"--ignore-columns {name}" in notes[0]
        assert f"--categories {name}" in notes[0]
    assert not [note for note in noted({name: cells}, numbers=name) if note.column == name]
    halves: list[object] = [17 * (row % 30) + 0.5 for row in range(N)]
    assert not [note for note in noted({name: halves}) if note.column == name]


@pytest.mark.parametrize("name", ["pupilNR", "pupilNr", "caseNO"])
def test_unique_numbers_with_the_name_of_an_identifier_are_dropped(name: str) -> None:
    """Sparse numbers could be measurements: 120 rows in a range of 2,000,000."""
    cells: list[object] = [int(v) for v in np.random.default_rng(3).permutation(2_000_000)[:N]]
    found = column(cells)
    assert isinstance(found, Number)
    made = prepared({name: cells})
    assert name in [dropped.name for dropped in made.dropped]
