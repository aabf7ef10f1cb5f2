"""Check the prose of the documents: ``python docs/prose.py`` lists what to mend.

It holds the length of sentences, words of no meaning to a newcomer, and that every page of the four
kinds says what its reader can do after it and where to go next.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MAX_WORDS = 34
"""Longest sentence."""
MEAN_WORDS = 22
"""Longest mean sentence of a page."""
BANNED = {
    "left out with a word": "say what is logged",
    "what clients tell": "name the numbers that clients send",
    "of those who can be": "name the clients",
    "headline": "use 'main metric'",
    "utilize": "use 'use'",
    "leverage": "use 'use'",
    "simply": "leave it out",
    "obviously": "leave it out",
    "behavior": "use British spelling: behaviour",
    "personalization": "use British spelling: personalisation",
    "optimizer": "use British spelling: optimiser",
}
"""Phrases that a page must not have, with what to write instead."""
CODE = re.compile(r"```.*?```|`[^`]*`|<!--.*?-->", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
GUIDED = ("tutorials", "how-to", "explanation", "reference", "docs")
"""Folders whose pages begin with an aim and end with where to go next."""
GENERATED = {"what-pays.md"}


def pages() -> list[Path]:
    """Return the pages that are written by hand."""
    folders = ("tutorials", "how-to", "explanation", "reference", "methods")
    found = [page for folder in folders for page in sorted((DOCS / folder).glob("*.md"))]
    return [
        ROOT / "README.md",
        *sorted(DOCS.glob("*.md")),
        *(p for p in found if p.name not in GENERATED),
    ]


def sentences(text: str) -> list[str]:
    """Return the sentences of paragraphs and list items, without code and tables."""
    text = LINK.sub(r"\1", CODE.sub("CODE", text))
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:-|\d\.) )", text)
    prose = [
        block
        for block in blocks
        if not block.startswith("    ") and not block.lstrip().startswith(("#", "|", "CODE"))
    ]
    joined = (" ".join(block.split()) for block in prose)
    return [part for block in joined for part in re.split(r"(?<=[.!?:;])\s+", block) if part]


def problems(page: Path) -> list[str]:
    """Return what a page does wrong, a line each."""
    text = page.read_text()
    found = []
    parts = sentences(text)
    lengths = [len(part.split()) for part in parts]
    name = page.relative_to(ROOT)
    for part, length in zip(parts, lengths, strict=True):
        if length > MAX_WORDS:
            found.append(f"{name}: a sentence of {length} words: {part[:70]}...")
    if lengths and sum(lengths) / len(lengths) > MEAN_WORDS:
        mean = sum(lengths) / len(lengths)
        found.append(f"{name}: {mean:.0f} words per sentence, more than {MEAN_WORDS}")
    lower = CODE.sub("", text).lower()
    for phrase, advice in BANNED.items():
        if phrase in lower and not _in_title(phrase, text):
            found.append(f"{name}: '{phrase}': {advice}")
    if page.parent.name in GUIDED and page.name not in GENERATED:
        if "After this page you" not in text:
            found.append(f"{name}: say what the reader can do: 'After this page you ...'")
        if "\n## Where to go next\n" not in text:
            found.append(f"{name}: end with '## Where to go next'")
    return found


def _in_title(phrase: str, text: str) -> bool:
    """Return whether a phrase stands only in titles of papers, which keep their own spelling."""
    plain = re.sub(r"(?<!\*)\*(?!\*)[^*]+\*", "", CODE.sub("", text)).lower()
    return phrase not in plain


def main() -> int:
    """Print the problems of all pages; return an exit code."""
    found = [problem for page in pages() for problem in problems(page)]
    print("\n".join(found) or "no problem found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
