import os

import pytest


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients here save a thousand small files: a slow disk would make these tests crawl, and none
    tests power cuts.
    """
    monkeypatch.setattr(os, "fsync", lambda file: None)
