"""Options: bounds stand with the option; names of method and task may be the same."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.cli.options import parse_several_methods
from equipoise.cli.parser import Parser
from equipoise.config.schema import Schedule, cosine, steps
from equipoise.core import Method, Options, Scheduled, TrainingConfig, option
from equipoise.data.datasets.synthetic import SyntheticConfig
from equipoise.environments.deep_task import DeepRLConfig
from equipoise.experiment.compare import options_of
from equipoise.flower.config import DeploymentConfig
from equipoise.methods import all_methods, find_method
from equipoise.methods.feddyn import FedDyn
from equipoise.methods.fedprox import FedProx
from equipoise.methods.page.page import Page
from equipoise.methods.rl_linear import LinearRepresentation
from equipoise.privacy.config import PrivacyConfig
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.option_registry import options
from equipoise.settings.run_config import RunConfig
from equipoise.tasks import all_tasks, find_task
from equipoise.utils.errors import UsageError

SMALL = {"task": "synthetic", "clients": 4, "rounds": 2, "samples": 40}


@dataclass(frozen=True)
class Example(Options):
    share: float = option(0.5, "a share", low=0, below=1)
    most: float = option(2.0, "at most five", high=5)
    time: float = option(1.0, "a time", above=0, high=math.inf)
    count: Scheduled[int] = option(3, "a number", low=1)
    kind: str = option("plain", "a kind", choices=("plain", "fancy"))
    sure: bool = option(True, "whether")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"share": 1}, "share is 1: must be a number in [0, 1)"),
        ({"share": math.nan}, "share is nan: must be a number in [0, 1)"),
        ({"share": "much"}, "share is 'much': must be a number in [0, 1)"),
        ({"share": True}, "share is True: must be a number in [0, 1)"),
        ({"share": None}, "share is None: must be a number in [0, 1)"),
        ({"most": 5.5}, "most is 5.5: must be a number of at most 5"),
        ({"most": -math.inf}, "most is -inf: must be a number of at most 5"),
        ({"time": 0.0}, "time is 0.0: must be a number above 0 or inf"),
        ({"count": 0}, "count is 0: must be a whole number of at least 1"),
        ({"count": 1.0}, "count is 1.0: must be a whole number of at least 1"),
        ({"kind": "fency"}, "kind is 'fency': must be one of plain, fancy (did you mean 'fancy'?)"),
        ({"sure": 1}, "sure is 1: must be true or false"),
        (
            {"count": steps({0: 1, 3: 0})},
            "must be a whole number of at least 1 in every round",
        ),
        (
            {"share": -1.0, "most": 6},
            "share is -1.0: must be a number in [0, 1); most is 6: must be ",
        ),
    ],
)
def test_refusals_are_worded_from_the_declaration(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        Example(**given)
    assert words in str(error.value)


def test_numbers_that_mean_the_same_are_taken_in_the_options_own_type() -> None:
    made = Example(share=0, most=np.float64(3), count=np.int64(2), time=math.inf)
    assert made == Example(share=0.0, most=3.0, count=2, time=math.inf)
    assert [type(value) for value in dataclasses.astuple(made)] == [
        float,
        float,
        float,
        int,
        str,
        bool,
    ]


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (FedProx, {"mu": -1}),
        (TrainingConfig, {"lr": 0.0}),
        (TrainingConfig, {"momentum": 1.0}),
        (RunConfig, {"participation": 0.0}),
        (RunConfig, {"executor": "fast"}),
        (PrivacyConfig, {"dp_delta": 1.0}),
        (SyntheticConfig, {"val_share": 1.0}),
        (DeepRLConfig, {"target_tau": -0.1}),
        (Page, {"agent_rate": -0.1}),
        (LinearRepresentation, {"t0": math.nan}),
        (DeploymentConfig, {"out": "/x", "below": "wait"}),
    ],
)
def test_every_typed_config_is_checked_when_it_is_made(config: type, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{list(given)[-1]} is"):
        config(**given)


def test_a_method_of_ones_own_has_its_bounds_checked() -> None:
    @dataclass(frozen=True)
    class Cautious(Method):
        name: ClassVar[str] = "cautious"
        caution: float = option(0.5, "share of the way to go", low=0.0, high=1.0)

    assert Cautious(caution=1).caution == 1.0
    with pytest.raises(UsageError, match=r"caution is 1\.5: must be a number in \[0, 1\]"):
        Cautious(caution=1.5)


def test_every_number_of_every_method_and_task_has_bounds_that_admit_its_default() -> None:
    free = {"gym": {"return_low", "return_high"}}
    for method in all_methods().values():
        for task in all_tasks().values():
            for item in options(method, task).values():
                assert item.rule.help, item.full
                number = item.kind.type in (int, float) and item.name not in free.get(
                    task.name, set()
                )
                assert bool(item.rule.bounds_text) or not number, item.full
                assert item.rule.allows(item.default), item.full


def test_help_shows_default_and_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--method", "fedprox", "--help-all"])
    text = " ".join(capsys.readouterr().out.split())
    assert "(default: 0.1; above 0)" in text
    assert "(default: 1.0; in (0, 1])" in text
    assert "one of auto, stacked, loop" in text
    assert "--task.alpha" not in text


# --- names ----------------------------------------------------------------------------------------


def test_method_and_task_may_have_an_option_of_one_name() -> None:
    found = ExperimentConfig.from_options(
        {**SMALL, "method": "feddyn", "method.alpha": 0.2, "task.alpha": 1.5}
    )
    assert found.method == FedDyn(alpha=0.2)
    assert found.task_config.alpha == 1.5
    assert found.to_dict["method.alpha"] == 0.2
    assert found.to_dict["task.alpha"] == 1.5
    assert "alpha" not in found.to_dict
    assert ExperimentConfig.from_options(found.to_dict) == found


def test_a_short_name_stays_where_it_is_unique() -> None:
    for name in ("alpha", "task.alpha"):
        assert ExperimentConfig.from_options({**SMALL, name: 1.5}).to_dict["alpha"] == 1.5
    known = options(find_method("feddyn"), find_task("fmnist"))
    assert known["alpha"].owner == "method"


@pytest.mark.parametrize("more", [{}, {"method.alpha": 0.1}])
def test_an_ambiguous_name_is_refused_with_both_full_names(more: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"say task\.alpha or method\.alpha"):
        ExperimentConfig.from_options({**SMALL, "method": "feddyn", "alpha": 0.1, **more})


@pytest.mark.parametrize(
    "given",
    [
        {"lam": 1.0, "method.lam": 1.0, "method": "ditto"},
        {"task.size_sigma": 0.5, "size_sigma": 0.5},
    ],
)
def test_an_option_is_given_once(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="given twice"):
        ExperimentConfig.from_options({**SMALL, "method": "feddyn", **given})


def test_an_own_option_with_a_name_of_the_run_is_refused() -> None:
    @dataclass(frozen=True)
    class Clash(Method):
        name: ClassVar[str] = "clash"
        lr: float = option(0.5, "a rate")

    with pytest.raises(
        UsageError, match="method option 'lr' is also an option of training: rename it"
    ):
        options(Clash, find_task("synthetic"))


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(UsageError) as error:
        ExperimentConfig.from_options(
            {**SMALL, "lr": -1, "rounds": 0, "test_share": 2.0, "method": "fedprox", "mu": "high"}
        )
    assert all(f"{name} is" in str(error.value) for name in ("lr", "rounds", "test_share", "mu"))
    with pytest.raises(UsageError) as error:
        ExperimentConfig.from_options({"learning_rate": 1, "round": 0})
    assert "'learning_rate'" in str(error.value)
    assert "'round'" in str(error.value)


def test_the_command_line_and_files_take_full_names_and_schedules(tmp_path: Path) -> None:
    few = "--clients 4 --rounds 2 --samples 40 --quiet".split()
    file = tmp_path / "run.toml"
    lines = [
        'method = "feddyn"',
        '"task.alpha" = 0.5',
        'lr = "cosine(0.1, 0.01)"',
        'weight-decay = "linear(0, 0.1)"',
    ]
    file.write_text("\n".join(lines))
    out = tmp_path / "a"
    typed = ["--method.alpha", "0.05", "--lr", "steps({0: 0.1, 1: 0.05})", "--out", str(out)]
    assert main(["run", "--config", str(file), *few, *typed]) == 0
    config = json.loads((out / "config.json").read_text())
    assert (config["method.alpha"], config["task.alpha"]) == (0.05, 0.5)
    assert config["lr"] == "steps({0: 0.1, 1: 0.05})"
    assert config["weight_decay"] == "linear(0, 0.1)"
    again = tmp_path / "b"
    assert main(["run", "--config", str(out / "config.json"), "--out", str(again), "--quiet"]) == 0
    assert json.loads((again / "config.json").read_text()) == config
    assert (again / "models/global.safetensors").read_bytes() == (
        out / "models/global.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--method feddyn --alpha 0.1", "say task.alpha or method.alpha"),
        ("--lr cosine(0.1", "lr is 'cosine(0.1': must be a number or a schedule"),
        ("--lr cosine(0.1,0)", "lr is cosine(0.1, 0): must be a number above 0 in every round"),
        ("--lr -1", "lr is -1.0: must be a number above 0"),
        (
            "--batch-size cosine(1,2)",
            "batch_size is 'cosine(1,2)': must be a whole number of at least 1",
        ),
        ("--epochs many", "epochs is 'many': must be a whole number of at least 1"),
    ],
)
def test_bad_values_are_one_line(
    typed: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["run", *typed.split(), "--out", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


def test_a_comparison_gives_each_method_its_own(tmp_path: Path) -> None:
    few = "--clients 4 --rounds 1 --samples 40 --seeds 1 --quiet".split()
    out = tmp_path / "c"
    typed = [
        "--task.alpha",
        "0.5",
        "--method.alpha",
        "0.05",
        "--mu",
        "linear(0, 1)",
        "--out",
        str(out),
    ]
    assert main(["compare", "--methods", "fedprox,feddyn", *few, *typed]) == 0
    one, other = (
        json.loads((out / name / "seed-0/config.json").read_text())
        for name in ("fedprox", "feddyn")
    )
    assert (one["alpha"], one["mu"]) == (0.5, "linear(0, 1)")
    assert (other["task.alpha"], other["method.alpha"]) == (0.5, 0.05)
    assert main(["compare", "--methods", "fedprox,feddyn", *few, *typed, "--resume"]) == 0


def test_from_python_a_schedule_is_given_as_it_is() -> None:
    settings = ExperimentConfig.from_options({**SMALL, "lr": cosine(0.1, 0.001)})
    assert isinstance(settings.training.lr, Schedule)
    assert settings.training.at(1, 2).lr == 0.1


# --- PAGE's table 7 -------------------------------------------------------------------------------


def test_the_critics_have_table_7s_rate_of_the_task_they_are_on() -> None:
    from types import SimpleNamespace

    rates = {"synthetic": 0.01, "cifar100": 0.05, "tinyimagenet": 0.001, "shakespeare": 0.005}
    for name, rate in rates.items():
        assert find_task(name)
        task = SimpleNamespace(info=SimpleNamespace(name=name))
        assert Page().agent_config(task).critic_lr == rate  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--data", "x"], ["autopilot@linear", "autopilot", "fedavg", "local"]),
        (["--data", "x", "--model", "mlp"], ["autopilot", "fedavg", "local"]),
        (["--data", "x", "--model", "trees"], ["fedtrees", "local"]),
        (["--model", "trees", "--data", "x", "--methods", "fedtrees"], ["fedtrees"]),
    ],
)
def test_methods_that_are_compared_unless_they_are_named(
    arguments: list[str], expected: list[str]
) -> None:
    _, cells = parse_several_methods(arguments, Parser("compare", "Compare."))
    assert list(cells) == expected


def test_a_method_may_have_a_model_of_its_own() -> None:
    given = {"task": "tables", "model": "mlp"}
    assert options_of("autopilot", given)["model"] == "mlp"
    assert options_of("autopilot@linear", given) == {
        "method": "autopilot",
        "task": "tables",
        "model": "linear",
    }
    assert options_of("mine", {"method": "fedprox"}) == {"method": "fedprox"}  # a label
    with pytest.raises(UsageError, match="give --model instead"):
        parse_several_methods(["--methods", "fedavg@linear"], Parser("tune", "Tune."), False)
