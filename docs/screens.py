"""The terminal pictures of the tutorials: ``python -m docs.screens`` types their commands.

The commands of a tutorial's blocks run as printed, in their order, in an empty folder. The output
of those that are named in ``SCREENS`` becomes docs/pictures/NAME.svg. The tutorial on deployment
needs Flower (``make test-flower`` sets it up): ``.venv-flower/bin/python -m docs.screens
deployment``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from docs import blocks

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"
WIDTH = 104
"""Columns of the terminal."""
MAX_LINES = 30
"""A longer output is cut: the first half and the last half are shown."""
MAX_ROWS = 3
"""A single line that is wrapped to more rows is cut."""
SCREENS = {
    "equipoise run --method fedavg --rounds 20": "screen-run",
    "equipoise compare --methods fedavg,ditto,local": "screen-compare",
    "equipoise data describe": "screen-describe",
    "equipoise run --method cautious.py": "screen-own-method",
    "equipoise run --task planted --method pfedtd-rep": "screen-agents",
    "equipoise flower dry-run": "screen-dry-run",
    "equipoise flower run": "screen-deployment",
}
"""Beginning of a command, and the name of its picture."""
SERVERS = ("flower-superlink", "equipoise flower node")
"""Commands that run until they are stopped: each has a terminal of its own."""
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's template without its web font: pages need no network."""


def type_tutorial(
    page: Path, folder: Path, wait: float = 0.0, *, to_last_screen: bool = False
) -> dict[str, str]:
    """Type the commands of a tutorial.

    Args:
        page: The tutorial.
        folder: An empty folder, where they run.
        wait: Seconds that a server gets to start.
        to_last_screen: Whether to stop after the last command of `SCREENS`.

    Returns:
        The output of each command that ended.

    Raises:
        RuntimeError: If a command fails, with its output.
    """
    blocks.save_files(page, folder)
    typed = _whole_loops(blocks.commands(page, "sh", "bash"))
    if to_last_screen:
        pictured = [k for k, line in enumerate(typed) if line.startswith(tuple(SCREENS))]
        typed = typed[: pictured[-1] + 1]
    found = {}
    with ExitStack() as stack:
        for line in typed:
            is_server = line.startswith(SERVERS)
            output = subprocess.DEVNULL if is_server else subprocess.PIPE
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}" if is_server else line],
                cwd=folder,
                env=_environment(),
                stdout=output,
                stderr=output,
                text=True,
            )
            if is_server:
                stack.callback(_stop, process)
                time.sleep(wait)
                continue
            out, errors = process.communicate()
            if process.returncode:
                raise RuntimeError(f"{line}\n{out}{errors}")
            found[line] = out
    return found


def draw(command: str, output: str) -> str:
    """Return the picture of a terminal with a command and its output."""
    lines = list(Text.from_ansi(output.rstrip()).split())
    for line in lines:
        line.truncate(MAX_ROWS * WIDTH, overflow="ellipsis")
    if len(lines) > MAX_LINES:
        half = MAX_LINES // 2
        lines = [*lines[:half], Text("..."), *lines[-half:]]
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(Text(f"$ {command}", style="bold"))
        for line in lines:
            console.print(line)
    # The same prefix of classes in each picture: equal output gives equal files.
    return console.export_svg(
        title="terminal", theme=DIMMED_MONOKAI, code_format=SVG, unique_id="t"
    )


def _environment() -> dict[str, str]:
    """Return the environment of a reader's terminal: this Python's commands first."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{here}:{os.environ['PATH']}",
        "COLUMNS": str(WIDTH),
        "FORCE_COLOR": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


def _whole_loops(lines: list[str]) -> list[str]:
    """Join the lines of a loop of the shell."""
    found: list[str] = []
    for line in lines:
        if found and found[-1].startswith("for ") and not found[-1].endswith("done"):
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def _stop(process: subprocess.Popen[str]) -> None:
    """End a server."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(names: list[str]) -> None:
    """Draw the screens of tutorials.

    Args:
        names: Their names; all that need no Flower if empty.
    """
    for name in names or ["first-run", "hospital-tables", "own-method", "agents"]:
        with tempfile.TemporaryDirectory() as folder:
            page = DOCS / "tutorials" / f"{name}.md"
            outputs = type_tutorial(page, Path(folder), wait=15, to_last_screen=True)
        for command, output in outputs.items():
            for beginning, picture in SCREENS.items():
                if command.startswith(beginning):
                    shown = command.replace(folder, "~")
                    text = draw(re.sub(r"\s+#.*", "", shown), output.replace(folder, "~"))
                    (PICTURES / f"{picture}.svg").write_text(text)
                    print(f"{picture}.svg: {command}")


if __name__ == "__main__":
    main(sys.argv[1:])
