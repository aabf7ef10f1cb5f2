"""The certificate: deviations by hand, a known equilibrium, and an unchanged run."""

import json
from pathlib import Path

import pytest
import torch

from equipoise.cli import main
from equipoise.core import LocalTrainRequest, Method, RngContext
from equipoise.experiment.certificate import certify
from equipoise.methods.autopilot import Autopilot
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedopt import FedAvgM
from equipoise.methods.page.page import Page, absolute_epochs, absolute_lr
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task


def test_the_largest_gain_is_that_of_the_best_deviation_tried() -> None:
    task = small_task("linear")
    sim = simulate(FedAvg(), task, 2)
    found = certify(sim, samples=4)
    # The same by hand: the next round with each client's alternatives, one after another.
    ids, when = torch.arange(6), RngContext(0, 3, task.info.training)
    u = 2 * torch.rand(4, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1

    def utility(epochs: torch.Tensor, lr: torch.Tensor) -> torch.Tensor:
        start = {k: v.expand(6, *v.shape) for k, v in sim.params.items()}
        fit = LocalTrainRequest(start, epochs, lr, trainable=tuple(start))
        trained, _, _ = task.fit_stack(ids, fit, {}, when)
        return 1 / task.evaluate_stack(ids, trained, "val")["loss"].clamp(min=0.01)

    mine = utility(torch.full((6,), 2), torch.full((6,), 0.05, dtype=torch.float64))
    others = torch.stack(
        [utility(absolute_epochs(a[:, 0], 20), absolute_lr(a[:, 1], 1e-3, 1e-1)) for a in u]
    )
    gains = (others.max(0).values / mine - 1).clamp(min=0)
    assert found.clients.largest == pytest.approx(float(gains.max()), rel=1e-6)
    assert found.clients.mean == pytest.approx(float(gains.mean()), rel=1e-6)


def test_the_servers_gain_by_hand() -> None:
    task = small_task("linear")
    sim = simulate(FedAvg(), task, 1)
    found = certify(sim, samples=3)
    again = simulate(FedAvg(), task, 2)
    f = task.evaluate_stack(torch.arange(6), again.store.local_params, "val")["loss"]
    n = task.num_examples(torch.arange(6)).double()
    u = torch.rand(3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    other = torch.softmax((2 * u - 1) * torch.tensor(10.0).log().double(), -1)
    gain = float(((n / n.sum()) @ f) / (other @ f).min() - 1)
    assert found.server.gain == pytest.approx(max(0.0, gain), rel=1e-5)
    assert found.largest_gain >= found.server.gain


@pytest.mark.parametrize(
    "method",
    [
        Page(warmup=1),
        Page(base="scaffold", controls="alpha,eta"),
        Autopilot(),
        FedAvgM(),
    ],
)
def test_a_certificate_leaves_the_run_as_it_was(method: Method) -> None:
    sim, untouched = (simulate(method, small_task(), 3, participation=0.5) for _ in range(2))
    found = certify(sim, samples=2)
    assert largest_difference(sim.state_dict(), untouched.state_dict()) == 0.0
    assert found == certify(sim, samples=2)
    assert found.clients.largest >= found.clients.mean >= 0.0


def test_where_training_changes_nothing_nobody_gains() -> None:
    """With tiny rates every deviation gives the same model: an exact equilibrium."""
    method = Page(controls="alpha,eta", lr_min=1e-300, lr_max=2e-300, warmup=0)
    assert certify(simulate(method, small_task(), 2), samples=3).clients.largest < 1e-12


def test_bad_use_is_refused() -> None:
    with pytest.raises(UsageError, match="samples"):
        certify(simulate(FedAvg(), small_task(), 1), samples=0)
    with pytest.raises(UsageError, match="val_share"):
        certify(simulate(FedAvg(), small_task(val_share=0.0), 1))


def test_the_command_adds_it_to_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    small = (
        "--clients 4 --features 4 --classes 3 --samples 40 --rounds 2 --epochs 1 --warmup 1".split()
    )
    assert main(["run", "--method", "page", "--out", folder, "--quiet", *small]) == 0
    assert main(["certify", folder, "--samples", "3"]) == 0
    shown = capsys.readouterr()
    assert "other choices tried: 3 of 3" in shown.err
    assert "epsilon" not in shown.out
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["certificate"]
    assert f"Largest relative gain of any player: {found['largest_gain']:.1%}" in shown.out
    assert found["samples"] == 3
    assert found["round"] == 3
    assert main(["certify", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_the_command_plays_the_method_as_it_was_run(tmp_path: Path) -> None:
    """With so small a clip the server's next model hardly changes, unless privacy is lost."""
    small = "--clients 4 --features 4 --classes 3 --samples 40 --rounds 2 --epochs 1".split()
    small += ["--method", "fedavg", "--quiet"]
    found = {}
    for name, options in (("plain", []), ("wrapped", ["--dp-clip", "1e-6"])):
        assert main(["run", "--out", str(tmp_path / name), *small, *options]) == 0
        assert main(["certify", str(tmp_path / name), "--samples", "3"]) == 0
        found[name] = json.loads((tmp_path / name / "summary.json").read_text())["certificate"]
    gains = {name: values["server"]["gain_of_the_aggregate"] for name, values in found.items()}
    assert gains["wrapped"] < 0.2 * gains["plain"]
