"""Predictions come back in the labels' own type and in the kind of frame that went in."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from equipoise.api.frames import in_kind_of

pd = pytest.importorskip("pandas")
QUICK = {"rounds": 8, "lr": 0.5}
COUNT = 120


def rows(labels) -> pd.DataFrame:
    """Rows of two sites whose label depends on x alone."""
    x = np.random.default_rng(0).normal(size=COUNT)
    label = np.array(labels, object)[(x > 0).astype(int)]
    table = {"x": x, "site": np.where(np.arange(COUNT) % 2, "a", "b"), "y": label.tolist()}
    return pd.DataFrame(table, index=np.arange(COUNT)[::-1])


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ((0, 1), "i"),
        ((3, 7), "i"),
        ((False, True), "b"),
        ((0.0, 1.0), "f"),
        ((0.5, 1.5), "f"),
        (("0", "1"), "U"),
        (("no", "yes"), "U"),
        (("false", "true"), "U"),
    ],
)
def test_labels_have_their_own_type(labels, kind, tmp_path):
    frame = rows(labels)
    options = {"target_type": "classification"}
    task = eq.Task.from_tables(frame, target="y", client_column="site", **options)
    run = eq.run(tmp_path / "run", task=task, model="linear", **QUICK)
    predicted = run.predict(frame, client_column="site")
    assert isinstance(predicted, pd.Series)
    assert predicted.index.equals(frame.index)
    assert np.asarray(predicted.tolist()).dtype.kind == kind
    assert (predicted == frame.y).mean() > 0.9
    again = eq.open(run.folder).predict(frame.drop(columns=["site", "y"]), client="a")
    assert np.asarray(again.tolist()).dtype.kind == kind


def test_tables_of_files_give_labels_as_a_reader_of_the_file_has_them(tmp_path):
    rows((0, 1)).to_csv(tmp_path / "rows.csv", index=False)
    task = eq.Task.from_folder(tmp_path / "rows.csv", target="y", client_column="site")
    run = eq.run(tmp_path / "run", task=task, model="linear", **QUICK)
    read = pd.read_csv(tmp_path / "rows.csv")
    assert (run.predict(read, client_column="site") == read.y).mean() > 0.9


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> eq.Run:
    task = eq.Task.from_tables(rows(("no", "yes")), target="y", client_column="site")
    return eq.run(tmp_path_factory.mktemp("frames") / "run", task=task, model="linear", **QUICK)


def test_frames_of_other_libraries_come_back_as_such(trained):
    polars = pytest.importorskip("polars")
    frame = rows(("no", "yes"))
    expected = trained.predict(frame, client_column="site").tolist()
    other = polars.from_pandas(frame)
    found = trained.predict(other, client_column="site")
    assert isinstance(found, polars.Series)
    assert found.to_list() == expected
    shares = trained.predict(other, client_column="site", probabilities=True)
    assert shares.columns == ["no", "yes"]
    arrow = trained.predict(other.to_arrow(), client_column="site")
    assert arrow.to_pylist() == expected
    shares = trained.predict(other.to_arrow(), client_column="site", probabilities=True)
    assert shares.column_names == ["no", "yes"]


def test_columns_by_name_and_arrays_give_arrays(trained):
    found = trained.predict({"x": [2.0, -2.0]}, client="a")
    assert isinstance(found, np.ndarray)
    assert found.tolist() == ["yes", "no"]


def test_a_mapping_and_an_array_are_no_frames():
    values = np.arange(2)
    assert in_kind_of({"x": [1, 2]}, values) is values
    assert in_kind_of(np.zeros((2, 1)), values) is values
    assert in_kind_of([[1.0], [2.0]], values) is values
