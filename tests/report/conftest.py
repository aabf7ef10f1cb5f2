"""Small real runs that the tests of the report look at."""

import contextlib
import io
from pathlib import Path

import pytest

from equipoise.cli import main

SMALL = "--clients 6 --epochs 1 --executor stacked --server-clients 20".split()


def command(*words: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*words]) == 0


@pytest.fixture(scope="session")
def page_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agents that decide epochs, rates and weights; held-out clients; a certificate."""
    out = tmp_path_factory.mktemp("page") / "run"
    options = ["--rounds", "8", "--holdout-clients", "0.2", "--out", str(out), "--quiet"]
    command("run", "--method", "page", "--reading", "paper", *SMALL, *options)
    command("certify", str(out), "--samples", "2")
    command("report", str(out))
    return out


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "cmp"
    options = ["--rounds", "5", "--seeds", "2", "--out", str(out), "--quiet"]
    command("compare", "--methods", "local,fedavg,finetune", *SMALL, *options)
    return out


@pytest.fixture(scope="session")
def tabular_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("numba", reason="the extra rl is not installed")
    out = tmp_path_factory.mktemp("tabular") / "run"
    options = [
        "--agents",
        "4",
        "--tau",
        "5",
        "--steps",
        "40",
        "--sims",
        "2",
        "--out",
        str(out),
        "--quiet",
    ]
    command("run", "--task", "two-state", "--method", "fedasynq-im", *options)
    return out


@pytest.fixture(scope="session")
def policy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parts chosen at random for each client."""
    out = tmp_path_factory.mktemp("policy") / "run"
    options = [
        "--policy",
        "random",
        "--model",
        "mlp",
        "--rounds",
        "6",
        "--out",
        str(out),
        "--quiet",
    ]
    command("run", "--method", "fedpolicy", *SMALL, *options)
    return out
