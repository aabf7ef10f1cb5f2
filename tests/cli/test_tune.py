"""Searching options on validation data, and comparing with what was found."""

import json

import pytest

from equipoise.cli import main
from equipoise.experiment.tune import search_space
from equipoise.methods import all_methods
from equipoise.settings.experiment_config import ExperimentConfig

pytest.importorskip("optuna")
SMALL = "--clients 5 --samples 50 --rounds 3 --batch-size 10".split()


def test_search_resumes_and_its_result_is_used(tmp_path, capsys):
    out = tmp_path / "tune"
    command = ["tune", "--methods", "fedavg,fedprox", "--out", str(out), *SMALL]
    assert main([*command, "--trials", "2"]) == 0
    first = capsys.readouterr().out
    assert "fedprox  trial 2/2" in first
    assert main([*command, "--trials", "3"]) == 0
    again = capsys.readouterr().out
    assert "trial 1/" not in again  # two trials were there already
    assert "fedprox  trial 3/3" in again
    best = json.loads((out / "fedprox" / "best.json").read_text())["options"]
    assert best.keys() == {"lr", "epochs", "mu"}
    cmp = tmp_path / "cmp"
    assert (
        main(
            [
                "compare",
                "--methods",
                "fedprox",
                "--tuned",
                str(out),
                "--seeds",
                "1",
                "--out",
                str(cmp),
                *SMALL,
            ]
        )
        == 0
    )
    used = json.loads((cmp / "fedprox" / "seed-0" / "config.json").read_text())
    assert {name: used[name] for name in best} == best


def test_the_defaults_are_the_first_trial(tmp_path, capsys):
    assert (
        main(["tune", "--methods", "fedprox", "--trials", "1", "--out", str(tmp_path), *SMALL]) == 0
    )
    assert "lr=0.1  epochs=20  mu=0.01" in capsys.readouterr().out


def test_an_option_that_is_given_stays_fixed():
    base = ExperimentConfig.from_options({"method": "fedprox", "lr": 0.05})
    assert search_space(all_methods()["fedprox"], base, {"lr": 0.05}).keys() == {"epochs", "mu"}


def test_every_option_that_tuning_may_change_exists_and_admits_its_default():
    for name, method in all_methods().items():
        chosen = ExperimentConfig.from_options({"method": name}).method
        for option, (low, high) in method.search_space.items():
            assert low <= getattr(chosen, option) <= high, (name, option)


def test_bad_searches_are_refused(tmp_path, capsys):
    assert (
        main(["tune", "--methods", "fedavg", "--trials", "0", "--out", str(tmp_path / "a"), *SMALL])
        == 2
    )
    assert main(["compare", "--methods", "fedavg", "--tuned", str(tmp_path / "b"), *SMALL]) == 2
    assert "equipoise tune" in capsys.readouterr().err
    assert (
        main(["tune", "--methods", "fedavg", "--trials", "1", "--out", str(tmp_path / "c"), *SMALL])
        == 0
    )
    assert (
        main(
            [
                "tune",
                "--methods",
                "fedavg",
                "--trials",
                "1",
                "--out",
                str(tmp_path / "c"),
                *SMALL,
                "--seed",
                "5",
            ]
        )
        == 2
    )
    assert "another search" in capsys.readouterr().err


def test_optuna_reads_the_search(tmp_path):
    from optuna import load_study
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    command = ["tune", "--methods", "fedavg", "--out", str(tmp_path), "--quiet", *SMALL]
    for trials in ("1", "2"):  # a resumed search goes on in the same file
        assert main([*command, "--trials", trials]) == 0
        file = tmp_path / "fedavg" / "optuna.journal"
        storage = JournalStorage(JournalFileBackend(str(file)))
        study = load_study(study_name="fedavg", storage=storage)
        assert len(study.trials) == int(trials)
    best = json.loads((tmp_path / "fedavg" / "best.json").read_text())
    assert study.best_value == best["score"]
    assert study.best_params == best["options"]


def test_a_wrong_option_is_said_at_the_first_trial(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    out = str(tmp_path / "tune")
    assert main(["tune", "--methods", "fedavg", "--data", str(data), "--out", out]) == 2
    assert "holds no CSV or Parquet files" in capsys.readouterr().err
