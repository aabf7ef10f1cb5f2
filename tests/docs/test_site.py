"""The documentation builds without a warning, shows every method and committed result, and needs no
network.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers_browser import PATIENCE, Browser

pytest.importorskip("mkdocs", reason="the extra docs is not installed")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    quiet = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
    }  # the theme's own notice about another program's future
    done = subprocess.run(
        build, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return out


def test_nothing_is_fetched(site: Path) -> None:
    fetching = re.compile(
        r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//|<link[^>]+href="(?:https?:)?//'
    )
    for page in site.rglob("*.html"):
        assert not fetching.search(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


def test_every_method_is_in_the_index_and_the_navigation(site: Path) -> None:
    index = (site / "methods" / "index.html").read_text()
    nav, _, content = index.partition("<article")
    for page in (ROOT / "docs" / "methods").glob("*.md"):
        assert f'href="{page.stem}.html"' in nav, page.stem
        assert f'href="{page.stem}.html"' in content, page.stem


def test_every_guide_is_in_the_navigation(site: Path) -> None:
    nav = (site / "index.html").read_text().partition("<article")[0]
    for page in (ROOT / "docs").rglob("*.md"):
        assert f'href="{page.relative_to(ROOT / "docs").with_suffix(".html")}"' in nav, page


def test_results_are_those_that_are_committed(site: Path) -> None:
    results = ROOT / "benchmarks" / "results"
    measured = json.loads((results / "peers.json").read_text())["W1, 1 epoch(s)"]["plain loop"][
        "ms"
    ]
    assert f">{measured:.6g}</td>" in (site / "benchmarks" / "results" / "peers.html").read_text()
    for page in results.glob("*/README.md"):
        shown = (site / "benchmarks" / "results" / page.parent.name / "index.html").read_text()
        figure = re.search(r"^\|.*?(\d+\.\d+)", page.read_text(), re.MULTILINE)
        assert figure
        assert figure[1] in shown, page


def test_links_of_the_repository_lead_to_pages(site: Path) -> None:
    assert 'href="../api/equipoise.core.html"' in (site / "explanation/concepts.html").read_text()
    assert (
        'href="../benchmarks/results/q/index.html"'
        in (site / "methods" / "fedsynq.html").read_text()
    )


def test_the_api_has_docstrings(site: Path) -> None:
    page = (site / "api" / "equipoise.core.html").read_text()
    assert "Base classes and message types" in page
    assert ":class:" not in page


def test_examples_are_shown_in_full(site: Path) -> None:
    page = (site / "examples.html").read_text()
    for script in (ROOT / "examples").glob("*.py"):
        assert f">{script.name}<" in page


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("SCAFFOLD", "methods/scaffold"),
        ("certificates", "how-to/deploy-server"),
        ("autopilot", "methods/autopilot"),
    ],
)
def test_search_works_from_the_disk(word: str, page: str, site: Path, browser: Browser) -> None:
    browser.get((site / "explanation" / "concepts.html").as_uri())
    field = browser.find_element("css selector", "input.md-search__input")
    browser.execute_script("arguments[0].focus()", field)
    field.send_keys(word)
    found = "return [...document.querySelectorAll('.md-search-result__item a')].map(a => a.href)"
    for _ in range(10 * PATIENCE):
        links = browser.execute_script(found)  # first those of the word's beginning
        if any(f"{page}.html" in link for link in links):
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"{page}.html is not among {links}")
    assert browser.get_log("browser") == []
