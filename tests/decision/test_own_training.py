"""Each site's own model, beside which others are judged, does not diverge."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("pyarrow")

from equipoise.experiment import evaluation
from equipoise.experiment.runner import run
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.pytree import Params

NUM_COLUMNS = 30
ROWS = 30


def write_sites(folder: Path) -> None:
    """Write two sites around 0, and one whose inputs all are eight standard deviations away."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    names = ",".join(f"x{k}" for k in range(NUM_COLUMNS))
    for site, offset in (("a", 0.0), ("b", 0.0), ("far", 8.0)):
        x = rng.normal(size=(ROWS, NUM_COLUMNS)) + offset
        y = x[:, :1] + rng.normal(size=(ROWS, 1))
        np.savetxt(
            folder / f"{site}.csv",
            np.hstack([x, y]),
            delimiter=",",
            header=f"{names},y",
            comments="",
        )


def own_models(folder: Path, sites: Path) -> Params:
    """Train on the tables, and return the models of sites that were trained alone."""
    options = {
        "task": "tables",
        "data": str(sites),
        "target": "y",
        "target_type": "regression",
        "model": "linear",
        "method": "fedavg",
        "rounds": 40,
        "lr": 0.05,
        "local_baseline": True,
    }
    run(ExperimentConfig.from_options(options), folder)
    found = load_file(folder / "models" / "baselines.safetensors")
    return {name: value for name, value in found.items() if name.startswith("local.")}


def test_a_site_that_diverges_is_trained_again_at_a_lower_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sites(tmp_path / "sites")
    models = own_models(tmp_path / "run", tmp_path / "sites")
    monkeypatch.setattr(evaluation, "LOWER_RATES", ())
    before = own_models(tmp_path / "before", tmp_path / "sites")
    assert float(before["local.weight"][2].abs().max()) > 1e3  # it does diverge
    for name, value in models.items():
        assert torch.equal(value[:2], before[name][:2])  # the others keep their bits
        assert float(value[2].abs().max()) < 2.0
