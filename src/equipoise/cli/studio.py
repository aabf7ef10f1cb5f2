"""``equipoise studio``: local web pages, from tables to a decision."""

from __future__ import annotations

from pathlib import Path

from equipoise.cli.parser import Parser


def studio(arguments: list[str]) -> int:
    """Serve the studio until Ctrl-C.

    Args:
        arguments: Options of the command.

    Returns:
        The exit code.
    """
    parser = Parser(
        "studio",
        "Pages in your browser: look at tables, compare methods, decide, predict. They are served "
        "on this machine only (127.0.0.1), without an account or a network.",
    )
    parser.add_argument("--dir", default="runs", help="folder of the results (default: runs)")
    parser.add_argument(
        "--port", type=int, default=0, help="port on 127.0.0.1 (default: 0, any free one)"
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address, but open no browser"
    )
    values = parser.parse(arguments)
    from equipoise.studio.server import serve

    return serve(Path(values.dir), values.port, not values.no_browser)
