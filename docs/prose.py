"""Check the prose of the documents: ``python docs/prose.py`` lists what to mend.

It holds the length of sentences, words of no meaning to a newcomer, abbreviations that nobody
explains, that a how-to guide fits a screen, and that every page of the four kinds says what its
reader can do after it and where to go next.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MAX_WORDS = 34
"""Longest sentence."""
MEAN_WORDS = 22
"""Longest mean sentence of a page."""
MAX_GUIDE_LINES = 62
"""Longest how-to guide, in lines."""
MAX_GUIDE_WORDS = 450
"""Longest how-to guide, in words."""
BANNED = {
    "left out with a word": "say what is logged",
    "what clients tell": "name the numbers that clients send",
    "of those who can be": "name the clients",
    "headline": "use 'main metric'",
    "utilize": "use 'use'",
    "leverage": "use 'use'",
    "simply": "leave it out",
    "obviously": "leave it out",
    "told": "name the numbers, and who sends them",
    "tells": "use 'says', 'shows' or 'sends'",
    "tell of": "use 'describe'",
    "whoever": "name the client, server or reader",
    "so many": "give the number, or 'this many'",
    "under way": "use 'in progress'",
    "anew": "use 'again'",
    "as ever": "use 'as usual'",
    "given up": "use 'abandoned'",
    "billed": "use 'counted'",
    "in the dark": "say who learns what",
    "becomes nothing": "use 'is dropped'",
    "by a word": "say what is logged",
    "goes down with": "use 'is sent with'",
    "behavior": "use British spelling: behaviour",
    "center": "use British spelling: centre",
    "color": "use British spelling: colour",
    "labeled": "use British spelling: labelled",
    "modeling": "use British spelling: modelling",
    "normalize": "use British spelling: normalise",
    "normalized": "use British spelling: normalised",
    "optimize": "use British spelling: optimise",
    "optimizer": "use British spelling: optimiser",
    "personalization": "use British spelling: personalisation",
    "personalized": "use British spelling: personalised",
}
"""Phrases that a page must not have, with what to write instead."""
COMMON = frozenset(
    (
        "API CPU CSV GB GIF GPU HTML ID II JSON MB MP4 PDF SHA SHA256 SIGKILL SIGTERM TOML "
        "URL UTC UTF XML YAML"
    ).split()
)
"""Abbreviations that everybody knows who opens a terminal."""
NAMES = frozenset(
    (
        "AISTATS BERT CIFAR CUDA GPT ICLR ICML JASA JAX LEAF MNIST NCCL PEFT QR REINFORCE SAS "
        "SLURM WWW"
    ).split()
)
"""Names in capitals: data sets, models, programs, journals."""
ABBREVIATION = re.compile(r"(?<![\w-])(?:[A-Z][A-Z0-9]*[A-Z][A-Z0-9]*)(?=s?\b)")
"""A word of two capitals or more; `NaN` and names such as FedBN are none."""
CODE = re.compile(r"```.*?```|`[^`]*`|<!--.*?-->", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
GUIDED = ("tutorials", "how-to", "explanation", "reference", "docs")
"""Folders whose pages begin with an aim and end with where to go next."""


def pages() -> list[Path]:
    """Return the pages that are written by hand."""
    folders = ("tutorials", "how-to", "explanation", "reference", "methods")
    found = [page for folder in folders for page in sorted((DOCS / folder).glob("*.md"))]
    return [
        ROOT / "README.md",
        *sorted(DOCS.glob("*.md")),
        *found,
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
    plain = _without_titles(text).lower()
    for phrase, advice in BANNED.items():
        if re.search(rf"\b{re.escape(phrase)}\b", plain):
            found.append(f"{name}: '{phrase}': {advice}")
    found += [
        f"{name}: {short} is not spelled out here, nor in the glossary" for short in undefined(text)
    ]
    if page.parent.name == "how-to":
        found += _too_long(text, str(name))
    if page.parent.name in GUIDED:
        if "After this page you" not in text:
            found.append(f"{name}: say what the reader can do: 'After this page you ...'")
        if "\n## Where to go next\n" not in text:
            found.append(f"{name}: end with '## Where to go next'")
    return found


def undefined(text: str) -> list[str]:
    """Return the abbreviations of a page that neither it nor the glossary explains.

    A page explains one in brackets after the words, at its first use: "deep Q-network (DQN)".
    """
    plain = _without_titles(re.split(r"\n## Reference\n", text)[0])
    firsts: dict[str, int] = {}
    for match in ABBREVIATION.finditer(plain):
        firsts.setdefault(match[0], match.start())
    return [
        short
        for short, place in firsts.items()
        if short not in COMMON | NAMES | _explained_elsewhere()
        and not re.match(rf"\({short}s?\)", plain[place - 1 : place + len(short) + 2])
    ]


@cache
def _explained_elsewhere() -> frozenset[str]:
    """Return the abbreviations in the terms of the glossary and in the names of methods."""
    glossary = (DOCS / "reference" / "glossary.md").read_text()
    terms = re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE)
    titles = [page.read_text().partition("\n")[0] for page in (DOCS / "methods").glob("*.md")]
    return frozenset(ABBREVIATION.findall(" ".join(terms + titles)))


def _too_long(text: str, name: str) -> list[str]:
    """Return a problem if a guide does not fit a screen."""
    lines = len(text.splitlines())
    words = len(text.split())
    if lines <= MAX_GUIDE_LINES and words <= MAX_GUIDE_WORDS:
        return []
    return [
        f"{name}: {lines} lines and {words} words; a guide has at most {MAX_GUIDE_LINES} and "
        f"{MAX_GUIDE_WORDS}: split it by task"
    ]


def _without_titles(text: str) -> str:
    """Return a page without code, addresses and titles of papers (they keep their spelling)."""
    plain = LINK.sub(r"\1", CODE.sub("", text))
    plain = re.sub(r"^ {4,}.*$", "", plain, flags=re.MULTILINE)
    return re.sub(r"(?<!\*)\*(?!\*)[^*]+\*", "", plain)


def main() -> int:
    """Print the problems of all pages; return an exit code."""
    found = [problem for page in pages() for problem in problems(page)]
    print("\n".join(found) or "no problem found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
