"""The commands of the pages run as printed, in the order in which a reader types them.

A block of ``sh`` holds commands that run on one machine; a block of ``text`` shows output, or
commands that need other machines, other people's files or more time.
"""

import contextlib
import io
import shlex
import shutil
from pathlib import Path

import pytest

from docs import blocks, prose
from equipoise.cli.main import main

TUTORIALS = prose.DOCS / "tutorials"
SMALLER = {"--rounds": "2", "--seeds": "1", "--trials": "2", "--steps": "200"}
"""Numbers that a page has for good scores: they are for a reader's patience."""


def commands(page: Path) -> list[list[str]]:
    """Return the commands of a page that run anywhere, words each."""
    words = [shlex.split(line, comments=True) for line in blocks.commands(page, "sh")]
    return [line for line in words if line and line[0] != "cd"]


def type_in(words: list[str]) -> None:
    """Run one command as a shell does, with smaller numbers."""
    assert words[0] == "equipoise", words
    file = ""
    if ">" in words:
        file = words[-1]
        words = words[:-2]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            code = main(_shorter(words[1:]))
        except SystemExit as end:  # --help
            code = end.code if isinstance(end.code, int) else 1
    assert code == 0, (words, out.getvalue())
    if file:
        Path(file).write_text(out.getvalue())


def _shorter(words: list[str]) -> list[str]:
    """Return the same command with smaller numbers, also where a page leaves the default."""
    before = ["", *words[:-1]]
    shorter = [SMALLER.get(last, word) for last, word in zip(before, words, strict=True)]
    if words[0] in ("run", "compare") and not {"--rounds", "--steps"} & set(words):
        shorter += ["--rounds", SMALLER["--rounds"]]
    if words[0] == "compare" and "--seeds" not in words:
        shorter += ["--seeds", SMALLER["--seeds"]]
    return shorter


@pytest.mark.parametrize(
    "name", ["first-run", "hospital-tables", "own-method", "agents", "deployment"]
)
def test_a_tutorial_runs_as_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("hospital-tables", "deployment"):
        pytest.importorskip("pyarrow", reason="the extra data is not installed")
    monkeypatch.chdir(tmp_path)
    page = TUTORIALS / f"{name}.md"
    blocks.save_files(page, tmp_path)
    typed = commands(page)
    assert typed
    for words in typed:
        type_in(words)


GUIDES = [
    page
    for page in prose.pages()
    if page.parent.name != "tutorials" and page.stem != "studio" and commands(page)
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the guides build on: the sample, and the runs of the tutorials."""
    pytest.importorskip("pyarrow", reason="the extra data is not installed")
    folder = tmp_path_factory.mktemp("desk")
    with contextlib.chdir(folder):
        for line in (
            "equipoise data sample clinics/",
            "equipoise compare --methods fedavg,local --seeds 1 --rounds 2 --data clinics/ "
            "--target readmitted --out runs/clinics",
            "equipoise choose runs/clinics",
            "equipoise run --rounds 2 --out runs/first",
            "equipoise compare --methods fedavg,local --seeds 1 --rounds 2 --out runs/compare",
        ):
            type_in(shlex.split(line))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_page_runs_as_printed(
    page: Path, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = commands(page)
    if not any(words[1:3] == ["data", "sample"] for words in typed):
        shutil.copytree(desk, tmp_path, dirs_exist_ok=True)
    (tmp_path / "examples").symlink_to(prose.ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    blocks.save_files(page, tmp_path)
    for words in typed:
        type_in(words)
