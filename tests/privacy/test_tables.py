"""Tables under differential privacy: nothing that clients would tell of
their columns escapes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dp_accounting", reason="extra 'privacy'")

from equipoise.experiment.build import build_task
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError


def sites(folder: Path, *names: str) -> Path:
    for shift, name in enumerate(names):
        rows = [
            f"{20 + 7 * row % 40 + 5 * shift},{'yes' if row % 3 else 'no'}" for row in range(40)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["age,ill", *rows]))
    return folder


def task_of(folder: Path, **given: Any) -> Any:
    fixed = {"task": "tables", "data": str(folder), "target": "ill", "numbers": "age"}
    return build_task(ExperimentConfig.from_options({**fixed, "dp_clip": 1.0, **given}))


def test_clients_tell_nothing_of_their_columns_under_noise(tmp_path: Path) -> None:
    folder = sites(tmp_path, "a", "b", "server")
    with pytest.raises(
        UsageError, match="before them clients would send sums and counts of their columns"
    ):
        task_of(folder, dp_noise=1.0, preprocess_from="clients")
    private = task_of(folder, dp_noise=1.0)
    assert private.preparation.upload_bytes == 0
    assert private.preparation.preprocessor.encoders[0].mean == pytest.approx(
        49.5
    )  # the server's 30 to 69, and nobody else's
    assert task_of(folder).preparation.upload_bytes > 0  # clipping alone promises nothing


def test_counts_of_classes_are_not_told_either(tmp_path: Path) -> None:
    folder = sites(tmp_path, "a", "b", "server")
    with pytest.raises(UsageError, match="class_weights counts every client's classes"):
        task_of(folder, dp_noise=1.0, class_weights="balanced")


def test_what_the_server_s_rows_lack_is_refused_as_a_class_and_rare_as_a_category(
    tmp_path: Path,
) -> None:
    folder = tmp_path
    header = "age,ill,town"
    towns = {"a": ("Rome", "Bern"), "b": ("Bern", "Ulm"), "server": ("Bern", "Ulm")}
    for name, pair in towns.items():
        rows = [f"{20 + row},{'yes' if row % 3 else 'no'},{pair[row % 2]}" for row in range(40)]
        (folder / f"{name}.csv").write_text("\n".join([header, *rows]))
    given = {"dp_noise": 1.0, "categories": "town"}
    private = task_of(folder, **given).preparation.preprocessor
    assert "Rome" not in str(private)  # only client a has it: nothing tells that
    assert "Bern" in str(private)
    assert "Ulm" in str(private)
    (folder / "a.csv").write_text("\n".join([header, "30,yes,Rome", *["40,perhaps,Rome"] * 39]))
    with pytest.raises(UsageError, match="client 'a' has a class that the server's rows lack"):
        task_of(folder, **given)
