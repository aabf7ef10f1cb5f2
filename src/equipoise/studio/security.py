"""Guard of the studio: only this machine, only this browser session, only requests of its pages.

The server listens on 127.0.0.1 alone. A random token in the first address becomes a session cookie
(SameSite=Strict, HttpOnly). Each request is checked for its Host (against DNS rebinding), and each
change for its Origin and a CSRF token.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

COOKIE = "equipoise_studio"
CSRF_HEADER = "x-csrf-token"
CHANGING = frozenset({"POST", "PUT", "DELETE", "PATCH"})
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; form-action 'self'; "
    "frame-src 'self'; base-uri 'none'; frame-ancestors 'self'"
)
"""Plotly sets styles from its script, so that inline styles are allowed; inline scripts are not."""
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data: blob:; frame-ancestors 'self'"
)
"""Policy of a report: it runs its own scripts, but cannot reach the studio."""


def _new_secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Secrets:
    """Random secrets of one start of the studio.

    Attributes:
        token: Opens the session; part of the address that is printed at start.
        session: Value of the session cookie.
        csrf: Sent by the studio's own pages with each change.
    """

    token: str = field(default_factory=_new_secret)
    session: str = field(default_factory=_new_secret)
    csrf: str = field(default_factory=_new_secret)


class Guard(BaseHTTPMiddleware):
    """Refuse requests that do not come from the studio's own pages in this browser."""

    def __init__(
        self, app: Callable[..., Awaitable[None]], secrets: Secrets, home: str = "/data"
    ) -> None:
        """Create the guard.

        Args:
            app: The application behind it.
            secrets: Secrets of this start.
            home: The first page.
        """
        super().__init__(app)
        self.secrets = secrets
        self.home = home

    async def dispatch(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Check a request, then add the security headers to the response."""
        refused = self._refuse(request)
        response = refused if refused is not None else await call_next(request)
        headers = response.headers
        headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "no-referrer"
        headers["Cross-Origin-Opener-Policy"] = "same-origin"
        headers["Cross-Origin-Resource-Policy"] = "same-origin"
        if not request.url.path.startswith("/static/"):
            headers["Cache-Control"] = "no-store"
        return response

    def _refuse(self, request: Request) -> Response | None:
        """Return why a request is refused; None if it may pass."""
        host = request.headers.get("host", "")
        if host.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
            return PlainTextResponse("This studio answers on 127.0.0.1 only.", 400)
        token = request.query_params.get("token", "")
        if request.url.path == "/" and _equal(token, self.secrets.token):
            response = RedirectResponse(self.home, 303)
            response.set_cookie(COOKIE, self.secrets.session, httponly=True, samesite="strict")
            return response
        if not _equal(request.cookies.get(COOKIE, ""), self.secrets.session):
            text = "Open the studio by the address that it printed at start: it holds a key."
            return PlainTextResponse(text, 403)
        if request.method not in CHANGING:
            return None
        origin = request.headers.get("origin", "")
        if origin != f"http://{host}":
            return PlainTextResponse("Refused: the request comes from another site.", 403)
        if not _equal(request.headers.get(CSRF_HEADER, ""), self.secrets.csrf):
            return PlainTextResponse("Refused: reload the page and try again.", 403)
        return None


def _equal(candidate: str, expected: str) -> bool:
    """Compare two texts in constant time."""
    return secrets.compare_digest(candidate.encode(), expected.encode())
