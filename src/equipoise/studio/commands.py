"""Short commands whose result a page shows: describe, choose, predict, report.

They run as child processes, as a user would type them, so that page and command line cannot
disagree. Long commands are jobs: see `equipoise.studio.jobs`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from equipoise.utils.errors import UsageError

COMMAND_SECONDS = 300.0  # longest time of a command that a page waits for


@dataclass(frozen=True)
class CommandResult:
    """A command that has ended.

    Attributes:
        arguments: Arguments of `equipoise`.
        code: Exit code.
        output: Standard output.
        errors: Standard error.
    """

    arguments: tuple[str, ...]
    code: int
    output: str
    errors: str

    @property
    def command(self) -> str:
        """The command as a user types it."""
        return shlex.join(["equipoise", *self.arguments])

    @property
    def message(self) -> str:
        """What went wrong, in the words of the command."""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        return lines[-1].removeprefix("equipoise: ") if lines else f"exit code {self.code}"

    def json(self) -> dict[str, object]:
        """Return the output as JSON.

        Raises:
            UsageError: If the command failed without an answer.
        """
        try:
            parsed = json.loads(self.output)
        except ValueError:
            raise UsageError(self.message) from None
        return parsed if isinstance(parsed, dict) else {"result": parsed}


async def run_command(arguments: list[str], folder: Path) -> CommandResult:
    """Run a command to its end.

    Args:
        arguments: Arguments of `equipoise`.
        folder: Folder in which it runs.

    Returns:
        The result, whatever the exit code.

    Raises:
        UsageError: If it takes longer than `COMMAND_SECONDS`; it is ended then.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "equipoise",
        *arguments,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "100"},
    )
    try:
        output, errors = await asyncio.wait_for(child.communicate(), COMMAND_SECONDS)
    except TimeoutError:
        child.kill()
        await child.wait()
        command = shlex.join(["equipoise", *arguments])
        raise UsageError(f"this took longer than {COMMAND_SECONDS:g} s: type {command}") from None
    except asyncio.CancelledError:  # the browser has left
        child.kill()
        raise
    code = child.returncode if child.returncode is not None else 1
    texts = (output.decode(errors="replace"), errors.decode(errors="replace"))
    return CommandResult(tuple(arguments), code, *texts)
