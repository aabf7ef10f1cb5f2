"""Blocks of a page as HTML."""

from equipoise.report.blocks import Block
from equipoise.report.html import template_environment


def rendered(*blocks: Block | None) -> str:
    """What the macros make of these blocks."""
    macros = template_environment().get_template("_macros.html.j2").module
    return str(macros.render_blocks([block for block in blocks if block is not None]))  # type: ignore[attr-defined]
