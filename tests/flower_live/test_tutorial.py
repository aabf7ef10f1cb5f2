"""The tutorial on deployment, typed as printed: a SuperLink and two nodes on 127.0.0.1."""

from pathlib import Path

import pytest

from docs import screens


@pytest.mark.slow
def test_the_tutorial_on_deployment_runs_as_printed(tmp_path: Path) -> None:
    outputs = screens.type_tutorial(screens.DOCS / "tutorials" / "deployment.md", tmp_path, wait=15)
    run = outputs["equipoise flower run app"]
    assert "round 5 of 5: north, east" in run
    assert "north: its own model has" in run
    assert "finished" in run
    [evaluated] = [text for line, text in outputs.items() if line.startswith("equipoise evaluate")]
    assert "global" in evaluated
