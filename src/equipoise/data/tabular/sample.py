"""A sample federation of tables: six clinics that differ, made up by a documented generator.

Nobody's data are in it. It has what real tables have: numbers, categories, a date, a patient
number, missing values that are more frequent at some clinics, and clinics of different sizes.

A row of clinic k is drawn as follows; z is the standardised number.

    risk = a_k + 1.2 z(age) + 0.8 z(systolic) + 1.0 [smoker] + b_k z(cholesterol) - 1.0 [treated]
    readmitted with probability 1 / (1 + exp(-risk))

a_k differs between clinics (how ill their patients are), and so does b_k (their laboratories).
"""

from __future__ import annotations

import csv
import io as text_io
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

from equipoise.utils import io
from equipoise.utils.errors import UsageError

TARGET = "readmitted"
CLIENT_COLUMN = "clinic"
NUM_NEW_ROWS = 50  # rows of each clinic that were never in its file
HEADER = (
    *("patient", "admitted", "age", "sex", "smoker", "systolic", "cholesterol", "treatment"),
    TARGET,
)


class Clinic(NamedTuple):
    """How one clinic differs from the others."""

    name: str
    num_rows: int
    intercept: float  # a_k
    cholesterol_effect: float  # b_k
    missing_share: float  # of cholesterol and smoker
    mean_age: float


CLINICS = (
    Clinic("east", 90, -0.2, 0.6, 0.05, 61),
    Clinic("harbour", 340, -0.6, 0.7, 0.02, 58),
    Clinic("hill", 45, 0.5, 0.6, 0.10, 70),
    Clinic("north", 220, -0.4, 0.8, 0.05, 63),
    Clinic("station", 150, 0.1, -0.4, 0.05, 52),
    Clinic("west", 60, 0.3, 0.7, 0.45, 66),
)


def write_sample(folder: Path, seed: int) -> Path:
    """Write one CSV file per clinic, and new rows of all clinics in a subfolder.

    Args:
        folder: The folder, which must not hold anything yet.
        seed: Draws all rows.

    Returns:
        The file with the new rows, which has a column with the clinic.

    Raises:
        UsageError: If the folder is in use.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"'{folder}' exists already: choose another folder")
    io.make_folder(folder / "new")
    new_rows = []
    first_patient = 10_001
    for k, clinic in enumerate(CLINICS):
        rng = np.random.default_rng([seed, k])
        rows = _draw_rows(clinic, clinic.num_rows + NUM_NEW_ROWS, first_patient, rng)
        first_patient += len(rows)
        _write_csv(folder / f"{clinic.name}.csv", HEADER, rows[NUM_NEW_ROWS:])
        new_rows += [(clinic.name, *row) for row in rows[:NUM_NEW_ROWS]]
    file = folder / "new" / "rows.csv"
    _write_csv(file, (CLIENT_COLUMN, *HEADER), new_rows)
    return file


def _draw_rows(
    clinic: Clinic, num_rows: int, first_patient: int, rng: np.random.Generator
) -> list[tuple[object, ...]]:
    """Draw the rows of one clinic; see the top of this file."""
    age = np.clip(rng.normal(clinic.mean_age, 12, num_rows), 18, 97).round()
    systolic = rng.normal(105 + 0.5 * age, 14).round()
    cholesterol = rng.normal(205, 38, num_rows).round()
    smoker = rng.random(num_rows) < 0.3
    treatment = rng.choice(["none", "tablets", "operation"], num_rows, p=[0.5, 0.35, 0.15])
    sex = rng.choice(["f", "m"], num_rows)
    risk = (
        clinic.intercept
        + 1.2 * (age - 60) / 12
        + 0.8 * (systolic - 135) / 15
        + 1.0 * smoker
        + clinic.cholesterol_effect * (cholesterol - 205) / 38
        - 1.0 * (treatment != "none")
    )
    readmitted = rng.random(num_rows) < 1 / (1 + np.exp(-risk))
    days = rng.integers(0, 730, num_rows)
    is_missing = rng.random((2, num_rows)) < clinic.missing_share
    patients = first_patient + rng.permutation(num_rows)
    rows: list[tuple[object, ...]] = []
    for i in range(num_rows):
        smokes = "yes" if smoker[i] else "no"
        row = (
            int(patients[i]),
            (date(2023, 1, 1) + timedelta(days=int(days[i]))).isoformat(),
            int(age[i]),
            str(sex[i]),
            "" if is_missing[0, i] else smokes,
            int(systolic[i]),
            "" if is_missing[1, i] else int(cholesterol[i]),
            str(treatment[i]),
            "yes" if readmitted[i] else "no",
        )
        rows.append(row)
    return rows


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a CSV file."""
    text = text_io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    io.write_text(path, text.getvalue())
