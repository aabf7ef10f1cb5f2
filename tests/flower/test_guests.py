"""Sites that take no part in training: they get the final model, and score or adapt it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.cli import main
from equipoise.experiment.runner import run
from equipoise.flower import codec
from equipoise.flower.config import NodeConfig
from equipoise.flower.egress import EgressRules
from equipoise.flower.guests import Guest, GuestNode, offer_model
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from flower.test_agreement import agreed, remote, rows, wire_of, write
from flower.test_agreement import sites as sites

RUN = "abc123"


class Guests:
    """A wire to guests within this process."""

    def __init__(self, given: dict[str, Any], configs: list[NodeConfig]) -> None:
        self.given = given
        self.configs = {
            Guest(100 + k, config.client, config.name, config.role): config
            for k, config in enumerate(configs)
        }
        self.spoil: dict[str, Any] = {}

    def guests(self) -> list[Guest]:
        return list(self.configs)

    def ask_guests(self, messages: Mapping[Guest, bytes], limit: float) -> dict[Guest, bytes | str]:
        answers: dict[Guest, bytes | str] = {}
        for guest, data in messages.items():
            answer = GuestNode(self.given, self.configs[guest]).answer(data)
            if self.spoil:
                about = codec.decode(answer)[1]
                answer = codec.encode({}, {**about, "values": {**about["values"], **self.spoil}})
            answers[guest] = answer
        return answers


@pytest.fixture
def finished(sites: Path) -> tuple[dict[str, Any], RunFolder]:
    """A run of three sites, and rows of a fourth."""
    write(sites / "ky" / "test.csv", rows(3, 30))
    write(sites / "ky" / "train.csv", rows(4, 60))
    wire = wire_of(sites, metric="auc", epochs=5, lr=0.3)
    run(agreed(wire)[1], sites / "run", make_executor=remote(wire))
    return wire.given, RunFolder(sites / "run")


def config(sites: Path, role: str, **more: Any) -> NodeConfig:
    return NodeConfig(7, sites / "state-ky", str(sites / "ky"), name="ky", role=role, **more)


def test_a_validation_site_scores_the_global_model(
    finished: tuple[dict[str, Any], RunFolder], sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, folder = finished
    (sites / "ky" / "train.csv").unlink()
    wire = Guests(given, [config(sites, "validate")])
    (line,) = offer_model(wire, folder, RUN, "auc", 1.0)
    assert line.startswith("ky (validate): the global model has auc ")
    assert line.endswith(" on 30 test rows")
    table = folder.read_table(folder.validation)
    assert table["rows"] == [30]
    assert table["auc_low"][0] <= table["auc"][0] <= table["auc_high"][0]
    # The same number as 'equipoise evaluate' finds in the folder at the node.
    model = sites / "state-ky" / RUN / "client-7"
    capsys.readouterr()
    assert main(["evaluate", str(model), str(sites / "ky" / "test.csv")]) == 0
    assert f"{table['auc'][0]:.3f}" in capsys.readouterr().out


def test_a_late_site_adapts(finished: tuple[dict[str, Any], RunFolder], sites: Path) -> None:
    given, folder = finished
    wire = Guests(given, [config(sites, "adapt")])
    (line,) = offer_model(wire, folder, RUN, "auc", 1.0)
    assert "its own model has" in line
    assert "gain over training alone" in line
    table = folder.read_table(folder.validation)
    assert {"personal_auc", "local_auc", "gain_over_own_low"} <= table.keys()
    own = sites / "state-ky" / RUN / "client-7" / "adapted"
    out = sites / "p.csv"
    assert main(["predict", str(own), str(sites / "ky" / "test.csv"), "--out", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 31


def test_few_rows_and_rules_keep_scores(
    finished: tuple[dict[str, Any], RunFolder], sites: Path
) -> None:
    given, folder = finished
    few = EgressRules(min_count=31)
    samples = EgressRules(metrics=("loss",), samples=False)
    for rules in (few, samples):
        wire = Guests(given, [config(sites, "validate", rules=rules)])
        assert offer_model(wire, folder, RUN, "auc", 1.0) == ["ky (validate): it tells no auc"]
    write(sites / "ky" / "test.csv", rows(3, 9))
    wire = Guests(given, [config(sites, "validate")])
    assert offer_model(wire, folder, RUN, "auc", 1.0) == ["ky (validate): it tells no auc"]
    assert not any(value == value for value in folder.read_table(folder.validation)["rows"])


def test_a_guest_never_trains_and_tells_nothing_of_its_columns(
    finished: tuple[dict[str, Any], RunFolder], sites: Path
) -> None:
    given, _ = finished
    node = GuestNode(given, config(sites, "validate"))
    for kind in ("round", "statistics", "score", "keys"):
        reply = codec.decode(node.answer(codec.encode({}, {"kind": kind, "client": 7})))[1]
        assert reply["error"].startswith("this node takes no part in training (role validate)")
    hello = codec.decode(node.answer(codec.encode({}, {"kind": "hello"})))[1]
    assert (hello["role"], hello["samples"], hello["client"]) == ("validate", 1, 7)
    private = GuestNode({**given, "dp_clip": 1.0, "dp_noise": 1.0}, config(sites, "validate"))
    question = codec.encode({}, {"kind": "model", "run": RUN, "metric": "auc"})
    assert "tells no scores" in codec.decode(private.answer(question))[1]["error"]
    frugal = GuestNode(given, replace(config(sites, "validate"), max_epsilon=8.0))
    assert "max-epsilon=8 only" in codec.decode(frugal.answer(question))[1]["error"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ({"auc": "good"}, "its values are no numbers"),
        ({"more": 1.0}, "its values have other names than the task's"),
        ({"auc": 1}, "its values are no numbers"),
    ],
)
def test_nonsense_of_a_guest_is_refused(
    spoil: dict[str, Any],
    reason: str,
    finished: tuple[dict[str, Any], RunFolder],
    sites: Path,
) -> None:
    given, folder = finished
    wire = Guests(given, [config(sites, "validate")])
    wire.spoil = spoil
    assert offer_model(wire, folder, RUN, "auc", 1.0) == [f"ky (validate): {reason}"]
    assert not folder.validation.exists()


def test_rows_of_numbers_are_scored_too(tmp_path: Path) -> None:
    x = torch.arange(40) / 40
    text = "a,b,label\n" + "\n".join(f"{a},{1 - a},{int(a > 0.5)}" for a in x.tolist()) + "\n"
    for place, names in {"server": ("train", "test"), "ky": ("test",)}.items():
        (tmp_path / place).mkdir()
        for name in names:
            (tmp_path / place / f"{name}.csv").write_text(text)
    given = {"task": "remote-tables", "data": str(tmp_path / "server"), "rounds": 1, "clients": 2}
    given |= {"model": "linear", "lr": 0.5, "epochs": 50}
    run(ExperimentConfig.from_options(given), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    wire = Guests(given, [replace(config(tmp_path, "validate"), rules=EgressRules())])
    (line,) = offer_model(wire, folder, RUN, "acc", 1.0)
    assert "on 40 test rows" in line
    assert folder.read_table(folder.validation)["acc"][0] > 0.8


def test_the_server_says_where_a_personal_model_is(
    finished: tuple[dict[str, Any], RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = finished
    folder.flower.write(json.dumps({"run": RUN, "statistics_bytes": 0}))
    assert main(["export", str(folder.path), "--client", "0"]) == 2
    assert f"'<state-dir>/{RUN}/client-0'" in capsys.readouterr().err


def test_a_role_is_one_of_three(tmp_path: Path) -> None:
    table = {"client-id": 0, "state-dir": str(tmp_path), "role": "look"}
    with pytest.raises(UsageError, match="must be one of train, validate, adapt"):
        NodeConfig.from_dict(table)
    assert NodeConfig.from_dict({**table, "role": "validate"}).role == "validate"
