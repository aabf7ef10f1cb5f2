"""``equipoise export``: a model of a run as others deploy it."""

from __future__ import annotations

from pathlib import Path

from equipoise.cli.parser import Parser, output_file


def main(arguments: list[str]) -> int:
    parser = Parser("export", "Write a model of a run in a format that other programs load.")
    parser.add_argument("folder", help="the run's folder")
    parser.add_argument(
        "--client", help="whose personal model, by name or number (default: the global model)"
    )
    parser.add_argument("--format", default="safetensors", help="safetensors, onnx or torchscript")
    parser.add_argument("--out", help="the file (default: models/export-… in the run's folder)")
    chosen = parser.parse(arguments)
    from equipoise.experiment.export import export
    from equipoise.experiment.model_card import read_card
    from equipoise.records.run_dir import Folder

    out = output_file(chosen.out) if chosen.out else None
    folder = Folder(Path(chosen.folder))
    client = None if chosen.client is None else folder.find_client(chosen.client)
    file, gap = export(folder.path, client, chosen.format, out)
    card = read_card(folder)
    print(
        f"{file}: {f'{card.in_words(client)}; ' if card else ''}predictions agree with the original within {gap:.1g}"
    )
    return 0
