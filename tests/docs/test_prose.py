"""The documents are written in short sentences, and tell where to go next."""

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


def test_every_abbreviation_of_the_readme_is_in_the_glossary_or_the_table() -> None:
    glossary = (prose.DOCS / "reference" / "glossary.md").read_text()
    rows = [line for line in glossary.splitlines() if line.startswith("| ")]
    assert len(rows) >= 30
    assert rows[2:] == sorted(rows[2:], key=lambda row: row.lower())
