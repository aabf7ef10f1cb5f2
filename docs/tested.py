"""The figures of docs/explanation/how-we-test.md: ``python docs/tested.py`` writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "explanation" / "how-we-test.md"
RESULTS = DOCS.parent / "benchmarks" / "results"


def rewritten(text: str) -> str:
    """Return the page with the figures of the committed results."""
    torture = json.loads((RESULTS / "torture.json").read_text())
    corruption = json.loads((RESULTS / "corruption.json").read_text())
    fuzz = json.loads((RESULTS / "fuzz.json").read_text())
    sentences = {
        "kills, {} different results": (torture["kills"], torture["differences"]),
        "cases, {} silently different results": (corruption["cases"], corruption["different"]),
        "messages, {} wrongly accepted": (fuzz["messages"], fuzz["wrong"]),
    }
    for sentence, (total, bad) in sentences.items():
        words, rest = sentence.split("{}")
        pattern = rf"[\d,]+ {re.escape(words)}[\d,]+{re.escape(rest)}"
        text, count = re.subn(pattern, f"{total:,} {words}{bad:,}{rest}", text)
        assert count == 1, f"{PAGE} has no sentence '... {sentence}'"
    return text


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
