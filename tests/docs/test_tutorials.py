"""The commands of the tutorials run as printed, in the order in which a reader types them."""

import re
import shlex
from pathlib import Path

import pytest

from equipoise.cli.main import main

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
SET_UP = ("pip", "python3", ".", "make")
"""Commands that the test's own environment has done already."""


def commands(name: str) -> list[list[str]]:
    """Return the commands of a page, words each."""
    blocks = BLOCK.findall((TUTORIALS / f"{name}.md").read_text())
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line for line in words if line and line[0] not in SET_UP]


@pytest.mark.parametrize("name", ["first-run", "hospital-tables", "agents", "deployment"])
def test_a_tutorial_runs_as_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in ("hospital-tables", "deployment"):
        pytest.importorskip("pyarrow", reason="the extra data is not installed")
    monkeypatch.chdir(tmp_path)
    typed = commands(name)
    assert len(typed) >= 2
    for words in typed:
        assert words[0] == "equipoise"
        short = _shorter(words[1:])
        try:
            code = main(short)
        except SystemExit as end:  # --help
            code = end.code if isinstance(end.code, int) else 1
        assert code == 0, (words, capsys.readouterr())


def _shorter(words: list[str]) -> list[str]:
    """Return the same command with fewer rounds: the page's number is for a reader's patience."""
    if "--rounds" not in words:
        return words
    place = words.index("--rounds") + 1
    return [*words[:place], "3", *words[place + 1 :]]
