"""Config files: YAML, TOML and JSON, flat and nested; `--set`; the schema; `config show`."""

import json
import re
from pathlib import Path

import pytest
import yaml

from equipoise.cli import main
from equipoise.cli.parser import expand_assignments
from equipoise.records.run_dir import RunFolder
from equipoise.utils.config_file import parse_config
from equipoise.utils.errors import UsageError

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "method": "fedprox",
    "method.mu": 0.1,
    "task": "synthetic",
    "task.clients": 5,
    "rounds": 2,
    "lr": "cosine(0.1, 0.01)",
}
TEXTS = {
    "nested.yaml": """
method: {name: fedprox, mu: 0.1}
task: {name: synthetic, clients: 5}
rounds: 2
training: {lr: "cosine(0.1, 0.01)"}
""",
    "flat.yml": """
method: fedprox
method.mu: 0.1
task: synthetic
task.clients: 5
rounds: 2
lr: cosine(0.1, 0.01)
""",
    "nested.toml": """
rounds = 2
[method]
name = "fedprox"
mu = 0.1
[task]
name = "synthetic"
clients = 5
[training]
lr = "cosine(0.1, 0.01)"
""",
    "nested.json": json.dumps(
        {
            "method": {"name": "fedprox", "mu": 0.1},
            "task": {"name": "synthetic", "clients": 5},
            "run": {"rounds": 2},
            "training": {"lr": "cosine(0.1, 0.01)"},
        }
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_every_form_says_the_same(tmp_path, name):
    (tmp_path / name).write_text(TEXTS[name])
    assert parse_config(tmp_path / name) == EXPECTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methods: {name: x}", r"unknown section 'methods' \(did you mean 'method'"),
        ("training: {lr: {start: 1}}", "nests 'lr' too deeply"),
        ("rounds: 1\nrun: {rounds: 2}", "gives 'rounds' twice"),
        ("- 1\n- 2", "must hold option names"),
        ("a: &x [1]\nb: *x", "aliases"),
        ("a: !!python/object:os.system x", "not valid YAML"),
        ("a: [", "not valid YAML"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UsageError, match=message):
        parse_config(tmp_path / "x.yaml")


def test_set_is_the_flag_of_an_option():
    given = ["run", "--set", "method.mu=0.1", "--set=secure=true", "--set", "a=b=c", "--x"]
    assert expand_assignments(given) == ["run", "--method.mu=0.1", "--secure", "--a=b=c", "--x"]
    with pytest.raises(UsageError, match="must be NAME=VALUE"):
        expand_assignments(["--set"])


SMALL = ["--clients", "4", "--samples", "40", "--epochs", "1", "--quiet"]


def test_set_wins_over_the_file_and_config_show_repeats_the_run(tmp_path, capsys):
    (tmp_path / "x.yaml").write_text("method: {name: fedprox, mu: 0.1}\nrounds: 3\n")
    first = ["--config", str(tmp_path / "x.yaml"), "--set", "method.mu=0.2", "--set", "rounds=2"]
    assert main(["run", *first, *SMALL, "--out", str(tmp_path / "a")]) == 0
    config = RunFolder(tmp_path / "a").read_config()
    assert (config["method"], config["mu"], config["rounds"]) == ("fedprox", 0.2, 2)
    capsys.readouterr()
    for option in ([], ["--all"], ["--json"], ["--all", "--json"]):
        assert main(["config", "show", str(tmp_path / "a"), *option]) == 0
        shown = capsys.readouterr().out
        file = tmp_path / ("again.json" if "--json" in option else "again.yaml")
        file.write_text(shown)
        out = tmp_path / "b"
        assert (
            main(["run", "--config", str(file), "--out", str(out), "--overwrite", "--quiet"]) == 0
        )
        assert RunFolder(out).read_config() == config
    assert yaml.safe_load(shown)["method"] == {"name": "fedprox", "mu": 0.2}


def test_an_unknown_option_of_set_is_named(tmp_path, capsys):
    assert main(["run", "--set", "method.muu=1", "--out", str(tmp_path / "x")]) == 2
    assert "--method.muu" in capsys.readouterr().err


def test_config_show_of_no_run_is_one_line(tmp_path, capsys):
    assert main(["config", "show", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


@pytest.fixture(scope="module")
def schema():
    from equipoise.settings.json_schema import config_schema

    return config_schema()


def _validate(schema, values):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(values, schema)


@pytest.mark.parametrize("name", [name for name in TEXTS if not name.endswith("toml")])
def test_the_schema_accepts_files_that_run(schema, name):
    _validate(schema, yaml.safe_load(TEXTS[name]))


def test_the_schema_accepts_the_configs_of_runs_and_of_the_repository(schema, tmp_path):
    assert main(["run", "--rounds", "1", *SMALL, "--out", str(tmp_path / "a")]) == 0
    _validate(schema, json.loads((tmp_path / "a" / "config.json").read_text()))
    files = [*ROOT.glob("examples/*.yaml"), *ROOT.glob("examples/*.yml")]
    assert files
    for file in files:
        _validate(schema, yaml.safe_load(file.read_text()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rouns": 3},
        {"rounds": 0},
        {"rounds": "many"},
        {"method": {"name": "fedprox", "muu": 1}},
        {"method": {"name": "fedprox", "mu": -1}},
        {"executor": "fast"},
        {"training": {"lr": 0}},
    ],
)
def test_the_schema_refuses_mistakes(schema, wrong):
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


COMMITTED = ("examples", "docs")
"""Folders whose YAML and JSON files are config files."""


def test_committed_config_files_fit_the_schema(schema):
    root = Path(__file__).parents[2]
    files = [
        file
        for folder in COMMITTED
        for suffix in ("yaml", "yml", "json")
        for file in (root / folder).rglob(f"*.{suffix}")
    ]
    assert files
    for file in files:
        _validate(schema, yaml.safe_load(file.read_text()))


def test_config_files_in_documents_fit_the_schema(schema):
    root = Path(__file__).parents[2]
    blocks = []
    for page in (root / "docs").rglob("*.md"):
        blocks += re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    configs = [values for values in map(yaml.safe_load, blocks) if "method" in values]
    assert configs
    for values in configs:
        _validate(schema, values)
