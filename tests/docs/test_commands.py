"""Every command on every page names a command, options, methods, tasks and models that exist."""

import contextlib
import io
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from docs import prose
from equipoise.cli.main import COMMANDS, main

LINE = re.compile(r"^(?: {4}|\$ )?(equipoise [a-z].*?)(?:\s+#.*)?$")
INLINE = re.compile(r"`(equipoise [a-z][^`]*)`")
OPTION = re.compile(r"--[a-z][a-z0-9-]*")
SUBCOMMANDS = {"data", "config", "list", "privacy", "flower"}
DECIDING = ("--method", "--task", "--data")
"""Options on which the others depend: help shows those of this method and task."""


def commands() -> list[tuple[Path, str]]:
    """Return every command of every page, with the page."""
    found = []
    for page in prose.pages():
        text = re.sub(r"\\\n\s*", " ", page.read_text())
        for line in text.splitlines():
            found += [(page, match) for match in INLINE.findall(line)]
            if whole := LINE.match(line):
                found.append((page, whole[1]))
    return found


@cache
def help_text(words: tuple[str, ...]) -> str:
    """Return what a command prints as its help."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(list(words))
    return out.getvalue()


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda value: str(value)[-60:])
def test_the_command_exists_with_its_options(page: Path, command: str) -> None:
    options = set(OPTION.findall(re.sub(r"'[^']*'|\"[^\"]*\"", "''", command)))
    try:
        words = shlex.split(command, comments=True)[1:]
    except ValueError:  # a text within a text, as in a table
        words = command.split()[1:]
    name = words[0]
    assert name in COMMANDS, command
    prefix = [name]
    if name in SUBCOMMANDS and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]):
        prefix.append(words[1])
    if prefix[1:] == ["node"] or ".py:" in command:
        return  # options of Flower's own command, or of a reader's own method
    takes_task = name in ("run", "compare", "tune", "data") and prefix[1:] != ["sample"]
    if takes_task:
        for option in DECIDING:
            value = words[words.index(option) + 1] if option in words[:-1] else ""
            if value and (option == "--data" or re.fullmatch(r"[a-z][a-z0-9-]*", value)):
                prefix += [option, value]
    text = help_text((*prefix, "--help-all" if takes_task else "--help"))
    assert text, f"{command}: no help"
    known = set(OPTION.findall(text))
    short = {option.replace("--no-", "--") for option in options}
    missing = {o for o in short if o not in known and o.replace("--", "--no-") not in known}
    assert not missing, f"{page.name}: '{command}' has unknown options {sorted(missing)}"
