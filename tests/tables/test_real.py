"""Four natural federations as they were published, each also with a mistake that people make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from equipoise.data.tabular import TableConfig, build_federation, read_tables
from equipoise.data.tabular.preprocessing import Category, Date
from equipoise.utils.errors import UsageError

TABLES = Path(__file__).parents[3] / "shared" / "data" / "tables"
pytestmark = pytest.mark.skipif(
    not TABLES.is_dir(), reason="the tables are not in ../shared/data/tables"
)


def made(path: Path, client: str, **choices: str):
    chosen = TableConfig(**choices)
    return build_federation(read_tables(path, client, chosen), chosen, np.random.default_rng(0))


HEART = {"ignore_columns": "flamby_split", "target": "num > 0"}


def test_heart_disease() -> None:
    found = made(TABLES / "heart_disease.csv", "hospital", **HEART)
    assert found.names == ("cleveland", "hungarian", "switzerland", "va")
    kinds = {column.name: column for column in found.preprocessor.encoders}
    assert {name for name, column in kinds.items() if isinstance(column, Category)} == {
        *("sex", "cp", "fbs", "restecg", "exang", "slope", "ca", "thal"),
    }
    assert "thal is missing" in found.preprocessor.features
    assert np.isfinite(found.data.split(np.arange(4), "train").x.numpy()).all()


def test_heart_disease_where_one_hospital_writes_commas_and_question_marks(tmp_path: Path) -> None:
    """Each hospital in a file of its own, as it might save it: the same numbers result."""
    lines = (TABLES / "heart_disease.csv").read_text().splitlines()
    header, rows = lines[0].split(","), [line.split(",") for line in lines[1:]]
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        mine = [row[1:] for row in rows if row[0] == name]
        comma = name == "hungarian"
        cells = [[cell.replace(".", ",") or "?" for cell in row] for row in mine] if comma else mine
        text = "\n".join((";" if comma else ",").join(row) for row in [header[1:], *cells])
        (tmp_path / f"{name}.csv").write_text(text)
    apart, one = (
        made(tmp_path, "client", **HEART),
        made(TABLES / "heart_disease.csv", "hospital", **HEART),
    )
    assert apart.data.fingerprint() == one.data.fingerprint()
    assert apart.preprocessor == one.preprocessor


def test_tcga_brca_is_survival() -> None:
    given = {"ignore_columns": "flamby_split", "target": "T", "event": "E"}
    found = made(TABLES / "tcga_brca.csv", "region", **given)
    assert found.preprocessor.target.kind == "survival"
    assert len(found.preprocessor.encoders) == 39
    assert found.data.split(np.arange(6), "train").y.shape[1] == 2
    with pytest.raises(UsageError, match="no column 'EVENT'"):
        made(TABLES / "tcga_brca.csv", "region", **{**given, "event": "EVENT"})
    with pytest.raises(UsageError, match="say --target-type regression"):
        made(TABLES / "tcga_brca.csv", "region", **{**given, "event": ""})


def test_nycflights() -> None:
    pytest.importorskip("pyarrow", reason="the extra data is not installed")
    path = TABLES / "nycflights13_sample.parquet"
    known_later = "dep_time,dep_delay,arr_time,air_time"
    with pytest.raises(UsageError) as error:
        made(path, "carrier", ignore_columns=known_later, target="arr_delay")
    assert "client 'OO' has 6 rows" in str(error.value)
    found = made(
        path, "carrier", ignore_columns=known_later, target="arr_delay > 15", small_clients="drop"
    )
    assert len(found.names) == 15
    columns = {column.name: column for column in found.preprocessor.encoders}
    assert isinstance(columns["time_hour"], Date)
    assert isinstance(columns["dest"], Category)
    assert columns["dest"].has_other
    minutes = made(
        path,
        "carrier",
        ignore_columns=known_later,
        target="arr_delay",
        target_type="regression",
        small_clients="pool",
    )
    assert minutes.preprocessor.target.mean == pytest.approx(7, abs=2)
