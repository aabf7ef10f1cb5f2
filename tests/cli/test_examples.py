"""The examples run as they are, and stay short.

Those on data of one's own are in tests/data/test_own.py.
"""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ARGUMENTS = {
    "compare": ("2", "fedavg", "report.html"),
    "own_method": ("2", "cautious", "personal models"),
    "federated_rl": ("200", "importance averaging", "largest error"),
    "own_environment": ("1", "dqnavg: received", "pfeddqn-rep: received"),
    "fedpolicy_fmnist": ("1", "fedpolicy", "personal models"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_runs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("federated_rl", "own_environment"):
        pytest.importorskip("gymnasium", reason="the extra rl is not installed")
        pytest.importorskip("numba", reason="the extra rl is not installed")
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    length, *words = ARGUMENTS[name]
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](str(tmp_path / "out"), length)
    printed = capsys.readouterr().out
    assert all(word in printed for word in words)
    assert list((tmp_path / "out").rglob("summary.json"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 80
    assert f"python examples/{path.name}" in text
