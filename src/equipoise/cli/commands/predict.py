"""``equipoise predict``: a model of a run on new rows."""

from __future__ import annotations

from pathlib import Path

from equipoise.cli.parser import Parser


def main(arguments: list[str]) -> int:
    parser = Parser("predict", "Predict for new rows of a table, by a model of a run.")
    parser.add_argument("folder", help="the run's folder")
    parser.add_argument(
        "rows",
        help="CSV or Parquet file with the columns of training, target aside; or recordings (.npz)",
    )
    parser.add_argument(
        "--client", help="whose personal model, by name or number (default: the global model)"
    )
    parser.add_argument(
        "--out", default="predictions.csv", help="the file (default: predictions.csv)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if there is one")
    chosen = parser.parse(arguments)
    from equipoise.experiment.predict import predict_file
    from equipoise.records.run_dir import Folder

    folder, out = Folder(Path(chosen.folder)), Path(chosen.out)
    folder.demand()
    client = None if chosen.client is None else folder.find_client(chosen.client)
    count = predict_file(folder, Path(chosen.rows), client, out, chosen.overwrite)
    print(f"{out}: {count} predictions")
    return 0
