import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra studio is not installed")
pytest.importorskip("uvicorn", reason="the extra studio is not installed")
pytest.importorskip("pyarrow", reason="the extra data is not installed")

from starlette.testclient import TestClient

from equipoise.studio.app import create_app
from equipoise.studio.paths import StudioPaths
from equipoise.studio.security import Secrets

HOST = "http://127.0.0.1:8000"


def write_clinics(path: Path, rows: int = 60) -> Path:
    """Write a table of three clinics; who is ill depends on age and pressure."""
    lines = ["clinic,age,pressure,sex,ill"]
    for row in range(rows):
        clinic = ("north", "south", "west")[row % 3]
        age = 30 + (row * 7) % 50
        pressure = 100 + (row * 13) % 60
        ill = "yes" if age + pressure / 2 + row % 3 > 120 else "no"
        lines.append(f"{clinic},{age},{pressure},{'mf'[row % 2]},{ill}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with one table."""
    write_clinics(tmp_path / "clinics.csv")
    return tmp_path


@pytest.fixture
def secrets() -> Secrets:
    return Secrets()


@pytest.fixture
def stranger(folder: Path, secrets: Secrets) -> TestClient:
    """A client that has not opened the printed address."""
    app = create_app(StudioPaths(folder / "runs", (folder,)), secrets)
    (folder / "runs").mkdir()
    return TestClient(app, base_url=HOST, follow_redirects=False, raise_server_exceptions=True)


@pytest.fixture
def client(stranger: TestClient, secrets: Secrets) -> TestClient:
    """A browser that opened the printed address, and whose pages send the CSRF token."""
    stranger.get("/", params={"token": secrets.token})
    stranger.headers.update({"origin": HOST, "x-csrf-token": secrets.csrf})
    return stranger


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A real studio: the address that it printed, and its folder."""
    folder = tmp_path_factory.mktemp("studio")
    write_clinics(folder / "clinics.csv", rows=150)
    command = [sys.executable, "-m", "equipoise", "studio", "--no-browser"]
    child = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", first)
    assert found, first
    yield found[0], folder
    child.terminate()
    child.communicate(timeout=60)
