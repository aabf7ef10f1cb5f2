"""Three clinics with rows to train on and rows that are held out."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from equipoise.cli import main

SITES = ("north", "south", "west")
OPTIONS = "--task tables --client-column clinic --target ill --ignore-columns patient"
QUICK = "--model linear --rounds 4 --epochs 2 --lr 0.3 --quiet"


def write_clinics(path: Path, rows: int, seed: int, sites: tuple[str, ...] = SITES) -> None:
    """Illness follows from age and marker; the marker means the opposite in the west."""
    random = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", "clinic", "age", "marker", "ill"])
        for site in sites:
            for row in range(rows):
                age = random.uniform(20, 80)
                marker = random.normal()
                sign = -1 if site == "west" else 1
                risk = (age - 50) / 15 + 2 * sign * marker + random.normal() / 2
                writer.writerow(
                    [f"{site}-{row:03}", site, f"{age:.1f}", f"{marker:.3f}", int(risk > 0)]
                )


@pytest.fixture(scope="session")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``train.csv`` and ``held.csv``."""
    folder = tmp_path_factory.mktemp("clinics")
    write_clinics(folder / "train.csv", 60, 0)
    write_clinics(folder / "held.csv", 50, 1)
    return folder


@pytest.fixture(scope="session")
def run(clinics: Path) -> Path:
    out = clinics / "run"
    options = f"{OPTIONS} {QUICK} --data {clinics / 'train.csv'} --local-baseline"
    assert main(["run", "--method", "fedavg", *options.split(), "--out", str(out)]) == 0
    return out
