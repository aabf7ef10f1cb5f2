"""Errors that Python calls raise name arguments and calls, not options of the command line."""

from __future__ import annotations

import inspect
import re

import pytest

import equipoise as eq
from equipoise.api.errors import in_python_words

TABLE = {"age": [20.0, 30.0, 60.0, 70.0] * 5, "ill": ["no", "no", "yes", "yes"] * 5}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("see --target", "see target"),
        ("choose another --out", "choose another out"),
        ("say --target-type regression, or", "say target_type='regression', or"),
        ("choose --model linear or mlp", "choose model='linear' or mlp"),
        ("lower --epochs (or take more --rounds)", "lower epochs (or take more rounds)"),
        ("or give --overwrite", "or give overwrite=True"),
        ("kept none (--no-save-personal)", "kept none (save_personal=False)"),
        ("leave --client-column out", "leave client_column out"),
        ("which --missing refuse forbids", "which missing='refuse' forbids"),
        ("(--ignore-columns a,b)", "(ignore_columns='a,b')"),
        ('or --target "num > 3" for', "or target='num > 3' for"),
        ("take --processes 2.", "take processes=2."),
        ("go on with 'equipoise resume runs/a' first", "go on with {} first"),
        ("see 'equipoise predict'", "see run.predict(...)"),
        ("a -- b and x--y stay", "a -- b and x--y stay"),
    ],
)
def test_options_become_arguments(message, expected):
    assert in_python_words(message) == expected.format("equipoise.open('runs/a').resume()")
    assert in_python_words(expected) == expected


def test_calls_with_mistakes_speak_python(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra data is not installed")
    small = {"rounds": 1, "clients": 4, "samples": 40}
    run = eq.run(tmp_path / "a", **small)
    task = eq.Task.from_tables({"a": TABLE, "b": TABLE}, target="ill")
    values = {**TABLE, "value": [0.37 * k for k in range(20)]}
    measured = eq.Task.from_tables({"a": values}, target="value")
    mistakes = [
        lambda: eq.run(tmp_path / "a", **small),
        lambda: eq.run(tmp_path / "b", task="tables"),
        lambda: eq.run(tmp_path / "b", task="gym", rounds=1),
        lambda: eq.run(tmp_path / "b", log="tensorbord"),
        lambda: eq.Task.from_tables(TABLE | {"x": [1.0] * 20}, target="i", client_column="s"),
        lambda: eq.run(tmp_path / "b", task=measured),
        lambda: eq.open(tmp_path),
        lambda: eq.open_choice(tmp_path),
        lambda: run.predict([[0.0] * 3]),
        lambda: run.export("x.pkl"),
        lambda: eq.run(tmp_path / "b", task=task, model="cnn"),
    ]
    for mistake in mistakes:
        with pytest.raises(eq.UsageError) as caught:
            mistake()
        assert not re.search(r"(^|[\s('])--[a-z]", str(caught.value)), str(caught.value)


def test_names_and_signatures_stay():
    assert eq.run.__name__ == "run"
    assert "method" in inspect.signature(eq.run).parameters
    assert "client_column" in inspect.signature(eq.Run.predict).parameters
    assert eq.Task.from_tables.__self__ is eq.Task


def test_a_table_shows_itself(tmp_path):
    small = {"rounds": 1, "clients": 4, "samples": 40}
    table = eq.compare(["fedavg", "local"], seeds=1, out=tmp_path / "c", **small).table()
    assert repr(table) == str(table)
    assert [line.split()[0] for line in repr(table).splitlines()] == ["method", "fedavg", "local"]
