"""``equipoise play``: an episode of an agent of a finished run."""

from __future__ import annotations

from pathlib import Path

from equipoise.cli.parser import Parser


def main(arguments: list[str]) -> int:
    parser = Parser(
        "play", "Play an episode of an agent of a finished run with its personal net, and film it."
    )
    parser.add_argument("folder", help="the run's folder")
    parser.add_argument(
        "--agent", type=int, default=0, help="whose net and environment (default: 0)"
    )
    parser.add_argument(
        "--episode", type=int, default=0, help="which of its scored episodes (default: 0)"
    )
    parser.add_argument(
        "--video", help="film it into this file: .gif, or .mp4 where ffmpeg is installed"
    )
    chosen = parser.parse(arguments)
    from equipoise.experiment.play import play

    video = Path(chosen.video) if chosen.video else None
    total = play(Path(chosen.folder), chosen.agent, chosen.episode, video)
    print(
        f"agent {chosen.agent}, episode {chosen.episode}: return {total:g}{f'; {video}' if video else ''}"
    )
    return 0
