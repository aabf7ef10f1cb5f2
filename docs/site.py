"""Pages that the documentation site makes while it is built, from their sources.

They are home, methods, examples, results and API.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
RESULTS = "benchmarks/results"
API = (
    "equipoise",
    "equipoise.sklearn",
    "equipoise.core",
    "equipoise.core.messages",
    "equipoise.core.client",
    "equipoise.core.server",
    "equipoise.core.task",
    "equipoise.core.method",
    "equipoise.config.schema",
    "equipoise.settings.experiment_config",
    "equipoise.settings.option_registry",
    "equipoise.experiment.build",
    "equipoise.experiment.runner",
    "equipoise.experiment.compare",
    "equipoise.experiment.tune",
    "equipoise.experiment.export",
    "equipoise.tasks.tables",
    "equipoise.models",
    "equipoise.data.partition",
    "equipoise.records.rounds",
    "equipoise.records.summary",
    "equipoise.records.run_dir",
    "equipoise.rl.ddpg",
    "equipoise.report.html",
    "equipoise.report.trackers",
)
SHIM = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add generated pages and pictures of results, then spell out the navigation."""
    pages = {
        "index.md": (ROOT / "README.md").read_text(),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text(),
        "examples.md": _examples(),
        "methods/index.md": _methods(),
        "benchmarks/README.md": (ROOT / "benchmarks/README.md").read_text(),
        **{
            f"{RESULTS}/{f.parent.name}/README.md": f.read_text()
            for f in sorted(ROOT.glob(f"{RESULTS}/*/README.md"))
        },
        **{f"{RESULTS}/{f.stem}.md": _measured(f) for f in sorted(ROOT.glob(f"{RESULTS}/*.json"))},
        **{f"api/{name}.md": f"# {name}\n\n::: {name}\n" for name in API},
        "api/index.md": "# API\n\n" + "".join(f"- [{name}]({name}.md)\n" for name in API),
    }
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    for picture in sorted(ROOT.glob(f"{RESULTS}/*/*.svg")):
        files.append(
            File.generated(config, str(picture.relative_to(ROOT)), abs_src_path=str(picture))
        )
    config.copyright = f"Equipoise {version('equipoise')}"
    config.nav = _spelt(
        config.nav or [], sorted(f.src_uri for f in files if f.is_documentation_page())
    )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages.

    A link to what is no page becomes plain words.

    Args:
        markdown: Text of the page.
        page: The page.
        config: Configuration of the site.
        files: Files of the site.

    Returns:
        The text with other links.
    """
    here = page.file.src_uri

    def rewritten(found: re.Match[str]) -> str:
        mark, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        there = _page_of(
            posixpath.normpath(posixpath.join(posixpath.dirname(_source_of(here)), target))
        )
        if files.get_file_from_path(there) is None:
            return words
        return (
            f"{mark}[{words}]({posixpath.relpath(there, posixpath.dirname(here) or '.')}{anchor})"
        )

    return LINK.sub(rewritten, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the code alone where docstrings name it as Sphinx does, :class:`Method`.

    Tables of results are not searched: nobody looks for a figure, and the theme's search fails at
    so many hits.

    Args:
        html: The page.
        page: Where it stands.
        config: Configuration of the site.
        files: Files of the site.

    Returns:
        The changed page.
    """
    if page.file.src_uri.startswith(RESULTS):
        html = html.replace("<table>", "<table data-search-exclude>")
    return re.sub(r":(?:class|func|meth|mod|data|attr):(?=<code>)", "", html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Put the helper of the search into a page.

    Args:
        output: The page.
        page: Where it stands.
        config: Configuration of the site.
    """
    return _without_shim(output)


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """Put the helper of the search into a page that comes from a template.

    Args:
        output: The page.
        template_name: Name of the template.
        config: Configuration of the site.
    """
    return _without_shim(output)


def _without_shim(output: str) -> str:
    """Put the helper of the search into a page; the theme would fetch it from the network."""
    helper = (ROOT / "docs/offline-search.js").read_text()
    return output.replace(SHIM, f"<script>{helper}</script>")


def _source_of(uri: str) -> str:
    """The file in the repository that a page shows."""
    known = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md"}
    return known.get(uri, uri if uri.startswith("benchmarks/") else f"docs/{uri}")


def _page_of(source: str) -> str:
    """The page that shows a file of the repository; the inverse of :func:`_source_of`, and more."""
    if source == "docs/methods":
        return "methods/index.md"
    if source.startswith("src/equipoise/"):
        module = (
            source.removeprefix("src/")
            .removesuffix(".py")
            .replace("/", ".")
            .removesuffix(".__init__")
        )
        return f"api/{module}.md"
    known = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
    if source.startswith("examples"):
        return "examples.md"
    if source.startswith(f"{RESULTS}/") and source.endswith(".json"):
        return source.removesuffix(".json") + ".md"
    return known.get(source, source.removeprefix("docs/"))


def _spelt(nav: list[Any], uris: list[str]) -> list[Any]:
    written = re.findall(r"[\w./-]+\.md", json.dumps(nav))

    def spell(item: Any) -> list[Any]:
        if isinstance(item, dict):
            [(title, inner)] = item.items()
            if isinstance(inner, str) and not inner.endswith("/*"):
                return [item]
            return [
                {
                    title: [
                        page
                        for part in (inner if isinstance(inner, list) else [inner])
                        for page in spell(part)
                    ]
                }
            ]
        if item.endswith("/*"):
            found = [uri for uri in uris if uri.startswith(item[:-1]) and uri not in written]
            return sorted(
                found,
                key=lambda uri: (posixpath.basename(uri) not in ("index.md", "README.md"), uri),
            )
        return [item]

    return [page for item in nav for page in spell(item)]


def _methods() -> str:
    """One line per method: its page and the first sentence there."""
    lines = ["# Methods", "", "| method | |", "|---|---|"]
    for file in sorted((ROOT / "docs/methods").glob("*.md")):
        title, _, rest = file.read_text().partition("\n")
        first = re.split(r"(?<=\.)\s", rest.strip().partition("\n\n")[0].replace("\n", " "))[
            0
        ].rstrip(":")
        lines.append(f"| [{title.lstrip('# ')}]({file.name}) | {first} |")
    return "\n".join(lines) + "\n"


def _examples() -> str:
    """Every script in full, under the first line of its docstring."""
    parts = [
        "# Examples\n\nScripts of at most 60 lines, run by the tests: `python examples/NAME.py`.\n"
    ]
    for file in sorted((ROOT / "examples").glob("*.py")):
        code = file.read_text()
        about = (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0]
        parts.append(f"## {file.name}\n\n{about}\n\n```python\n{code}```\n")
    return "\n".join(parts)


def _measured(file: Path) -> str:
    return f"# {file.stem}\n\nFrom `{file.relative_to(ROOT)}`.\n\n" + "\n".join(
        _tables(json.loads(file.read_text()), 2)
    )


def _tables(value: dict[str, Any], level: int) -> list[str]:
    """Return a result as tables.

    Plain values come first, then a table for rows that are alike, then parts with headings.
    """
    plain = {name: v for name, v in value.items() if not isinstance(v, dict) and not _rows(v)}
    lines = _table([{"": name, "value": _written(v)} for name, v in plain.items()])
    below = {name: v for name, v in value.items() if name not in plain}
    if below and all(
        isinstance(v, dict) and not any(isinstance(x, dict) or _rows(x) for x in v.values())
        for v in below.values()
    ):
        return lines + _table([{"": name, **v} for name, v in below.items()])
    for name, inner in below.items():
        lines.append(f"{'#' * min(level, 6)} {name}\n")
        lines += _table(inner) if isinstance(inner, list) else _tables(inner, level + 1)
    return lines


def _rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row))
    body = ["| " + " | ".join(_written(row.get(name, "")) for name in names) + " |" for row in rows]
    return ["| " + " | ".join(names) + " |", "|---|" + "---:|" * (len(names) - 1), *body, ""]


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_written, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|")
