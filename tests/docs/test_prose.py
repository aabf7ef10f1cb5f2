"""The documents are written in short sentences, and tell where to go next."""

import re
from pathlib import Path

import pytest

from docs import prose, tested


@pytest.mark.parametrize("page", prose.pages(), ids=lambda page: page.stem)
def test_the_prose_of_a_page(page: Path) -> None:
    assert prose.problems(page) == []


def test_the_readme_is_short() -> None:
    assert len((prose.ROOT / "README.md").read_text().splitlines()) <= 120


def test_long_sentences_and_banned_words_are_found(tmp_path: Path) -> None:
    page = prose.DOCS / "tutorials" / "first-run.md"
    words = " ".join(["word"] * (prose.MAX_WORDS + 1))
    assert prose.sentences(f"Short. {words}.\n\n```sh\ncode here\n```\n")[-1] == f"{words}."
    bad = tmp_path / "docs" / "tutorials" / "bad.md"
    bad.parent.mkdir(parents=True)
    bad.write_text(page.read_text().replace("After this page", "Obviously, after that"))
    root = prose.ROOT
    prose.ROOT = tmp_path
    try:
        found = prose.problems(bad)
    finally:
        prose.ROOT = root
    assert [problem.split(": ", 1)[1] for problem in found] == [
        "'obviously': leave it out",
        "say what the reader can do: 'After this page you ...'",
    ]


def test_the_figures_of_our_own_tests_are_the_committed_ones() -> None:
    text = tested.PAGE.read_text()
    assert tested.rewritten(text) == text, "run: python docs/tested.py"
    assert tested.rewritten(text.replace(" kills, 0", " kills, 7")) == text


def test_abbreviations_are_spelled_out_or_in_the_glossary() -> None:
    assert prose.undefined("By XQZ, and XQZs again; AUC, SGD, CSV and `QQQ` are known.") == ["XQZ"]
    assert prose.undefined("An extra query zone (XQZ), and XQZ again.") == []
    assert prose.undefined("By XQZ. An extra query zone (XQZ).") == ["XQZ"]
    assert prose.undefined("*A title of a paper: XQZ.* FedBN and NaN are none.") == []


def test_a_guide_of_two_screens_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    guide = tmp_path / "how-to" / "long.md"
    guide.parent.mkdir()
    whole = "After this page you can read.\n" + "Read.\n" * 70 + "\n## Where to go next\n"
    guide.write_text(whole)
    [problem] = prose.problems(guide)
    assert "split it by task" in problem


def test_the_glossary_is_sorted_and_has_thirty_terms() -> None:
    glossary = (prose.DOCS / "reference" / "glossary.md").read_text()
    rows = [line for line in glossary.splitlines() if line.startswith("| ")]
    assert len(rows) >= 30
    assert rows[2:] == sorted(rows[2:], key=lambda row: row.lower())


PICTURE = re.compile(r"^!\[.*\]\((?P<file>.*)\)\n\n(?P<caption>\*(?:[^*]+)\*)?", re.MULTILINE)


@pytest.mark.parametrize("page", prose.pages(), ids=lambda page: page.stem)
def test_every_figure_has_a_caption_with_its_command(page: Path) -> None:
    for figure in PICTURE.finditer(page.read_text()):
        assert (page.parent / figure["file"]).is_file(), figure[0]
        assert figure["caption"], f"{page.name}: {figure['file']} has no caption"
        drawn = re.search(r"(Drawn|Made) by\s+(`|hand)", figure["caption"])
        assert drawn, f"{page.name}: the caption of {figure['file']} names no command"
