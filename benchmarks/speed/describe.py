"""CPU time and memory of `equipoise data describe` on CSV files of 200,000 and a million rows.

The files have 19 columns: a site (14 of them), ten numbers, four categories, a flag, two dates and
an identifier, with missing cells. Every measurement is a process of its own. The figures of a file
with 280 rows are the start-up, mostly the import of PyTorch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from benchmarks.lab.provenance import measured

NUM_SITES = 14
STARTUP_ROWS = 280


def write_table(path: Path, num_rows: int) -> None:
    """Write a table of patients at several sites."""
    rng = np.random.default_rng(0)

    def with_missing(values: Any, share: float) -> pa.Array:
        return pa.array(values, mask=rng.random(num_rows) < share)

    columns: dict[str, Any] = {
        "site": [f"site{k:02}" for k in rng.integers(0, NUM_SITES, num_rows)]
    }
    for i in range(6):
        columns[f"lab{i}"] = with_missing(rng.normal(50 + i, 10, num_rows).round(3), 0.05 * i)
    for i in range(3):
        columns[f"count{i}"] = with_missing(rng.poisson(20 * (i + 1), num_rows), 0.02)
    colours = np.array(["red", "green", "dark blue", "yellow", "other"])
    for i in range(4):
        columns[f"category{i}"] = with_missing(
            colours[rng.integers(0, min(3 + i, 5), num_rows)], 0.03
        )
    columns["flag"] = rng.integers(0, 2, num_rows)
    days = np.datetime64("2015-01-01") + rng.integers(0, 3000, num_rows)
    columns["day"] = with_missing(days.astype(str), 0.02)
    minutes = rng.integers(0, 1440, num_rows)
    columns["visit"] = (days.astype("datetime64[m]") + minutes).astype("datetime64[s]").astype(str)
    columns["patient"] = [f"P{number:07}" for number in rng.permutation(num_rows)]
    columns["label"] = np.where(rng.random(num_rows) < 0.4, "ill", "well")
    arrow_csv.write_csv(pa.table(columns), path)


def describe(path: Path) -> dict[str, float]:
    """Describe a file in a new process and return what it took."""
    command = [sys.executable, "-m", "equipoise", "data", "describe", "--task", "tables"]
    command += ["--data", str(path), "--client-column", "site"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"'{' '.join(command)}' failed with exit code {process.returncode}")
    return {
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "seconds": round(time.perf_counter() - started, 2),
        "peak_mib": round(usage.ru_maxrss / 1024, 1),
    }


def main() -> None:
    """Measure files of several sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 1_000_000])
    num_rows = parser.parse_args().rows
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write_table(path, STARTUP_ROWS)
        describe(path)  # the first process also reads the libraries from disk
        startup = describe(path)
        result["start-up"] = startup
        for rows in num_rows:
            write_table(path, rows)
            found = describe(path)
            file_mib = path.stat().st_size / 2**20
            result[f"{rows:,} rows"] = {
                "file_mib": round(file_mib, 1),
                **found,
                "cpu_seconds_without_startup": round(
                    found["cpu_seconds"] - startup["cpu_seconds"], 2
                ),
                "memory_without_startup_per_file_size": round(
                    (found["peak_mib"] - startup["peak_mib"]) / file_mib, 2
                ),
            }
    measured("describe", result)


if __name__ == "__main__":
    main()
