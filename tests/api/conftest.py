"""A finished run that several tests look at."""

from pathlib import Path

import pytest

import equipoise as eq


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> eq.Run:
    task = eq.Task.from_name("synthetic", clients=5, samples=60)
    return eq.run(
        tmp_path_factory.mktemp("runs") / "first",
        method="fedprox",
        task=task,
        rounds=3,
        seed=1,
        mu=0.1,
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
