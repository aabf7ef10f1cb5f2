"""Newcomers: the folds, the rules of methods, the verdict, the folder, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.cli import main
from equipoise.core import TrainingConfig
from equipoise.data.federated_dataset import InputTransform, Target
from equipoise.experiment.adapt import Federated, adapt_rows
from equipoise.experiment.adaptation import AdaptHParams, Folds, Rule, cross_fit
from equipoise.methods import find_method
from equipoise.models import MODELS
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError

from .conftest import OPTIONS, QUICK, write_clinics

YES_NO = Target(classes=("no", "yes"), name="ill")


def folded_task(num_rows: int, model: str = "linear") -> tuple[ExamplesTask, Folds]:
    """Two features, of which the first decides; one client for each training set."""
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.normal(size=(num_rows, 2)).astype(np.float32))
    y = (x[:, 0] > 0).long()
    folds = Folds.draw(y, YES_NO, 0)
    data = folds.data(x, y, YES_NO, InputTransform())
    training = TrainingConfig(epochs=1, lr=0.5, batch_size=8)
    return ExamplesTask("tables", MODELS[model]((2,), 2), data, training), folds


# ------------------------------------------------------------------ maths


def test_folds_share_classes_and_training_sets_lack_what_they_say() -> None:
    y = torch.tensor([0] * 30 + [1] * 10)
    folds = Folds.draw(y, YES_NO, 0)
    counts = [np.bincount(y.numpy()[folds.rows(k)], minlength=2).tolist() for k in range(5)]
    assert counts == [[6, 2]] * 5
    assert folds.left_out[:2] == [(), (0,)]
    assert len(folds.left_out) == 1 + 5 + 10
    x = torch.arange(40.0)[:, None]
    data = folds.data(x, y, YES_NO, InputTransform())
    for client, lacking in enumerate(folds.left_out):
        split = data.split(np.array([client]), "train")
        start = int(split.start[0])
        rows = split.x[start : start + int(split.size[0]), 0].long().numpy()
        assert set(rows) == set(np.flatnonzero(~np.isin(folds.fold, lacking)))


def test_survivors_and_events_are_shared_between_folds() -> None:
    y = torch.stack([torch.arange(20.0), torch.tensor([1.0] * 5 + [0.0] * 15)], 1)
    folds = Folds.draw(y, Target(kind="survival"), 0)
    assert [int(y[folds.rows(k), 1].sum()) for k in range(5)] == [1] * 5


def test_the_choice_for_a_fold_does_not_use_that_fold() -> None:
    """The second candidate is perfect on fold 0 and wrong elsewhere: fold 0 must not choose it."""
    task, folds = folded_task(50)
    x, _ = task.data.server("test")
    right = {"weight": torch.tensor([[-9.0, 0], [9.0, 0]]), "bias": torch.zeros(2)}
    names = list(task.init_params(0))
    good = dict(zip(names, right.values(), strict=True))
    bad = {name: -value for name, value in good.items()}
    first = torch.from_numpy(folds.rows(0))
    logits = task.logits(good, x)

    class Cheater(ExamplesTask):
        """Wrong everywhere but on the first fold."""

        def logits(self, params, x):  # type: ignore[no-untyped-def]
            found = super().logits(params, x)
            is_bad = bool((params[names[0]][0, 0] > 0).item())
            is_first = len(x) == len(first) and torch.equal(x, task.data.server("test")[0][first])
            return -found if is_bad and is_first else found

    task.__class__ = Cheater
    stacks = [
        (AdaptHParams(1.0, number), {k: v.expand(16, *v.shape) for k, v in one.items()})
        for number, one in enumerate((good, bad), start=1)
    ]
    found = cross_fit(task, folds, iter(stacks))
    assert found.candidate.passes == 1
    assert torch.equal(found.outputs, logits)


def test_equal_losses_choose_the_received_model() -> None:
    task, folds = folded_task(40)
    model = task.init_params(0)
    stack = {name: value.expand(16, *value.shape) for name, value in model.items()}
    found = cross_fit(task, folds, iter([(AdaptHParams(1.0, 1), stack)]), model)
    assert found.candidate.passes == 0


def test_held_out_outputs_are_of_models_without_those_rows() -> None:
    """The model of a training set is its own number: outputs tell which one spoke."""
    task, folds = folded_task(30)
    names = list(task.init_params(0))
    weight = torch.zeros(16, 2, 2)
    bias = torch.arange(16.0)[:, None].expand(16, 2)
    stack = dict(zip(names, (weight, bias), strict=True))
    found = cross_fit(task, folds, iter([(AdaptHParams(1.0, 1), stack)]))
    assert found.outputs[:, 0].tolist() == [1.0 + fold for fold in folds.fold]
    assert float(found.params[names[1]][0]) == 0.0  # the final model has all rows


@pytest.mark.parametrize(
    ("method", "words", "unit"),
    [
        ("fedavg", "fine-tuning of the global model", "epochs"),
        ("autopilot", "fine-tuning of the global model", "epochs"),
        ("scaffold", "fine-tuning of the global model", "epochs"),
        ("page", "fine-tuning of the global model", "epochs"),
        ("fedper", "the rule of fedper, with its own head", "rounds"),
        ("fedrep", "the rule of fedrep, with its own head", "rounds"),
        ("fedrecon", "the rule of fedrecon, with its own head", "rounds"),
        ("ditto", "the rule of ditto", "rounds"),
        ("finetune", "the rule of finetune", "rounds"),
    ],
)
def test_rules_of_methods(method: str, words: str, unit: str) -> None:
    task, _ = folded_task(30, "mlp")
    rule = Rule.of(find_method(method)(), task)
    assert (rule.words, rule.unit) == (words, unit)


@pytest.mark.parametrize("method", ["fedper", "fedrecon"])
def test_shared_blocks_of_reconstruction_stay_as_received(method: str) -> None:
    task, _ = folded_task(30, "mlp")
    params = task.init_params(0)
    rule = Rule.of(find_method(method)(), task)
    _, stack = next(iter(rule.path(task, params, task.info.training, 0)))
    head = task.info.param_names("head")
    backbone = task.info.param_names("backbone")
    assert any(not torch.equal(stack[name][0], params[name]) for name in head)
    same = all(torch.equal(stack[name][0], params[name]) for name in backbone)
    assert same == (method == "fedrecon")


def test_fine_tuning_goes_on_from_its_own_model() -> None:
    """Longer training lowers the loss on the training rows."""
    task, _ = folded_task(60)
    rule = Rule.of(find_method("fedavg")(), task)
    x, y = task.data.server("test")
    losses = []
    for candidate, stack in rule.path(task, task.init_params(0), task.info.training, 0):
        if candidate.lr_factor < 1:
            break
        model = {name: value[0] for name, value in stack.items()}
        losses.append(float(task.objective.losses(task.logits(model, x), y).mean()))
    assert losses == sorted(losses, reverse=True)


# ------------------------------------------------------------------ from folder to folder


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a new site, where the marker means the opposite of the run's majority."""
    path = tmp_path_factory.mktemp("newcomer") / "west.csv"
    write_clinics(path, 150, 3, ("west",))
    text = path.read_text().replace("west", "coast")
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def two_sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two sites that agree."""
    folder = tmp_path_factory.mktemp("two")
    write_clinics(folder / "train.csv", 80, 0, ("north", "south"))
    options = f"{OPTIONS} {QUICK} --data {folder / 'train.csv'}"
    assert main(["run", *options.split(), "--out", str(folder / "run")]) == 0
    return folder / "run"


def adapted(two_sites: Path, newcomer: Path, out: Path, *more: str) -> int:
    return main(["adapt", str(two_sites), str(newcomer), "--out", str(out), "--quiet", *more])


def test_a_newcomer_that_differs_gains(
    two_sites: Path, newcomer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "coast"
    command = ["adapt", str(two_sites), str(newcomer), "--name", "coast", "--out", str(out)]
    assert main(command) == 0
    text = capsys.readouterr().out.replace("\n", " ")
    assert "coast: personal model, acc" in text
    assert "It is better than the global model" in text
    assert "fine-tuning of the global model" in text
    found = {one.model: one for one in eq.Newcomer(out).decision.candidates}
    assert set(found) == {"personal", "global", "local", "constant"}
    assert found["personal"].weighted.value > 0.8 > found["global"].weighted.value
    assert found["global"].verdict == "behind"


def test_predict_evaluate_export_and_report_take_the_folder(
    two_sites: Path, newcomer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "coast"
    assert adapted(two_sites, newcomer, out, "--name", "coast") == 0
    rows = tmp_path / "new.csv"
    write_clinics(rows, 80, 9, ("west",))
    predictions = tmp_path / "p.csv"
    assert main(["predict", str(out), str(rows), "--out", str(predictions)]) == 0
    assert "by the personal model of coast" in capsys.readouterr().out.replace("\n", " ")
    with open(predictions) as file, open(rows) as truth:
        pairs = list(zip(csv.DictReader(file), csv.DictReader(truth), strict=True))
    assert np.mean([one["predicted"] == other["ill"] for one, other in pairs]) > 0.8
    assert main(["evaluate", str(out), str(rows)]) == 0
    text = capsys.readouterr().out
    assert "coast" in text
    assert "global" in text
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "coast: its model by fedavg" in page
    assert "It is better than the global model" in page
    assert "Calibration" in page
    assert main(["export", str(out), "--out", str(tmp_path / "m.safetensors")]) == 0
    assert "the personal model of coast" in capsys.readouterr().out
    assert main(["export", str(out), "--client", "coast", "--out", str(tmp_path / "n.pt")]) == 0
    assert main(["export", str(out), "--client", "north", "--out", str(tmp_path / "o.pt")]) == 2
    assert main(["predict", str(out), str(rows), "--client", "north", "--overwrite"]) == 2


def test_the_same_rows_give_the_same_model(two_sites: Path, newcomer: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert adapted(two_sites, newcomer, tmp_path / name, "--name", "coast") == 0
    models = [(tmp_path / name / "models/global.safetensors").read_bytes() for name in ("a", "b")]
    assert models[0] == models[1]


def test_adapt_starts_from_a_choice_and_from_a_newcomer(
    two_sites: Path, newcomer: Path, tmp_path: Path
) -> None:
    assert main(["choose", str(two_sites), "--refit", "none", "--out", str(tmp_path / "c")]) == 0
    assert adapted(tmp_path / "c", newcomer, tmp_path / "one", "--name", "coast") == 0
    write_clinics(tmp_path / "shore.csv", 20, 4, ("shore",))
    rows = tmp_path / "shore.csv"
    assert adapted(tmp_path / "one", rows, tmp_path / "two", "--name", "shore") == 0


@pytest.mark.parametrize("method", ["fedper", "fedtrees"])
def test_own_heads_and_own_trees(
    two_sites: Path, newcomer: Path, tmp_path: Path, method: str
) -> None:
    model = {"fedper": "--model mlp --rounds 3", "fedtrees": "--trees 4"}[method]
    options = f"{OPTIONS} --quiet {model} --data {two_sites.parent / 'train.csv'}"
    run = tmp_path / "run"
    assert main(["run", "--method", method, *options.split(), "--out", str(run)]) == 0
    result = eq.open(run).adapt(table(newcomer), "coast")
    assert result.folder == tmp_path / "run-coast"
    words = {"fedper": "with its own head", "fedtrees": "own trees on top of the common ones"}
    assert words[method] in str(result)
    by_model = {one.model: one.weighted.value for one in result.decision.candidates}
    assert by_model["personal"] > 0.75
    assert ("global" in by_model) == (method == "fedtrees")
    predicted = result.predict(table(newcomer))
    truth = np.array(table(newcomer)["ill"])
    assert np.mean(predicted.astype(str) == truth) > 0.8


def table(path: Path) -> dict[str, list[str]]:
    """Read the columns of a CSV file."""
    with open(path) as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_scales_of_its_own(newcomer: Path, two_sites: Path, tmp_path: Path) -> None:
    """Where clients are standardised by themselves, a newcomer is, too."""
    options = f"{OPTIONS} {QUICK} --standardise client --data {two_sites.parent / 'train.csv'}"
    run = tmp_path / "run"
    assert main(["run", *options.split(), "--out", str(run)]) == 0
    rows = table(newcomer)
    shifted = {**rows, "age": [str(100 * float(age) + 7) for age in rows["age"]]}
    plain = adapt_rows(Federated.read(run), rows, "coast")
    moved = adapt_rows(Federated.read(run), shifted, "coast")
    assert moved.preprocessor is not None
    torch.testing.assert_close(plain.models["global"], moved.models["global"], rtol=1e-3, atol=1e-4)


def test_arrays_of_a_python_task(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def site(sign: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        x = random.normal(size=(60, 3)).astype(np.float32)
        return x, (sign * x[:, 0] > 0).astype(np.int64)

    task = eq.Task.from_datasets([site(1), site(1)], model=torch.nn.Linear(3, 2))
    run = eq.run(tmp_path / "run", task=task, rounds=3, lr=0.5)
    result = run.adapt(site(-1))
    assert "better than the global model" in str(result)
    x, y = site(-1)
    assert np.mean(result.predict(x) == y) > 0.8
    with pytest.raises(UsageError, match=r"give a pair \(x, y\)"):
        run.adapt(x)


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": None}, "the rows lack columns: 'age'"),
        ({"ill": None}, "without the target there is nothing to learn from"),
        ({"age": None, "aeg": "7"}, "lack columns: 'age' (did you mean 'aeg'?) and have columns"),
        ({"pulse": "7"}, "columns that training did not have: 'pulse'"),
        ({"ill": "perhaps"}, "row 2 of the rows has a class that no client had"),
        ({"ill": ""}, "the newcomer has 0 rows with a target"),
        ({"clinic": "north"}, "the rows belong to 'north' (column 'clinic'), which took part"),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_one_line(
    two_sites: Path,
    newcomer: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, str | None],
    message: str,
) -> None:
    columns = table(newcomer)
    for name, value in change.items():
        if value is None:
            del columns[name]
        else:
            columns[name] = [value] * 150
    path = tmp_path / "rows.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    assert adapted(two_sites, path, tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_few_rows_are_told(two_sites: Path, newcomer: Path, tmp_path: Path) -> None:
    rows = {name: values[:20] for name, values in table(newcomer).items()}
    source = Federated.read(two_sites)
    assert any("20 rows are few" in note for note in adapt_rows(source, rows).decision.notes)
    with pytest.raises(UsageError, match="at least 10 are needed"):
        adapt_rows(source, {name: values[:9] for name, values in rows.items()})


def test_names_folders_and_methods_that_are_refused(
    two_sites: Path, newcomer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert adapted(two_sites, newcomer, tmp_path / "out", "--name", "north") == 2
    assert "'north' took part in training" in capsys.readouterr().err
    assert adapted(two_sites, newcomer, tmp_path / "out") == 0
    assert adapted(two_sites, newcomer, tmp_path / "out") == 2
    assert "exists already" in capsys.readouterr().err
    assert adapted(two_sites, newcomer, tmp_path / "out", "--overwrite") == 0
    assert adapted(two_sites, newcomer, two_sites, "--overwrite") == 2
    assert "is no result of 'equipoise adapt'" in capsys.readouterr().err
    options = f"{OPTIONS} {QUICK} --data {two_sites.parent / 'train.csv'} --method local"
    assert main(["run", *options.split(), "--out", str(tmp_path / "local")]) == 0
    assert adapted(tmp_path / "local", newcomer, tmp_path / "x") == 2
    assert "share nothing that a newcomer could start from" in capsys.readouterr().err
