"""Files of the report that pages of the studio use too."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

import equipoise.report

SHARED_FILES = {"style.css": "text/css", "sortable_tables.js": "text/javascript"}
"""Files of the report that the studio uses too, with their types."""


async def shared_with_report(request: Request) -> Response:
    """Return a style sheet or script that studio and report share."""
    file = request.path_params["file"]
    if file not in SHARED_FILES:
        return PlainTextResponse("not found", 404)
    folder = Path(str(equipoise.report.__file__)).parent / "templates"
    return FileResponse(folder / file, media_type=SHARED_FILES[file])
