"""The wheel: what is in it, and that it works outside the repository."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import equipoise

ROOT = Path(__file__).parents[2]
FIRST_EXAMPLE = """
import equipoise as eq

run = eq.run("first", method="fedavg", task="synthetic", rounds=2, clients=5, samples=60)
print(run.final.personal.acc > 0)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of a copy of what git tracks, without a network."""
    pytest.importorskip("build")
    source = tmp_path_factory.mktemp("source")
    names = subprocess.run(
        ["git", "ls-files", "-z", "src", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if names.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, names.stdout.split("\0")):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    folders = {name.split("/")[0] for name in names}
    assert folders == {"equipoise", f"equipoise-{equipoise.__version__}.dist-info"}
    shipped = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "equipoise").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped <= set(names)
    assert f"Version: {equipoise.__version__}\n" in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_the_version_stands_in_one_place_and_the_citation_follows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == equipoise.__version__


def test_the_wheel_runs_outside_the_repository(wheel, tmp_path):
    """Its own files come from the wheel; its dependencies are those of this environment."""
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", target, wheel], check=True, timeout=120)
    environment = os.environ | {"PYTHONPATH": str(target)}
    _try_out(sys.executable, target / "bin" / "equipoise", tmp_path, environment, target)


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(wheel, tmp_path):
    """Needs the package index."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    subprocess.run(install, check=True, timeout=900)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = tmp_path / "venv" / "bin" / "equipoise"
    _try_out(python, command, tmp_path, environment, tmp_path / "venv")


def _try_out(
    python: str | Path, command: Path, folder: Path, environment: dict[str, str], home: Path
) -> None:
    """Run the first example, and the command, in a folder outside the repository."""

    def output(*arguments: object) -> str:
        done = subprocess.run(
            list(map(str, arguments)),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = output(python, "-c", "import equipoise; print(equipoise.__file__)")
    assert Path(where.strip()).is_relative_to(home)
    assert output(python, "-c", FIRST_EXAMPLE).strip() == "True"
    assert output(python, command, "--version").strip() == f"equipoise {equipoise.__version__}"
    small = ["--clients", "5", "--samples", "60", "--rounds", "2"]
    output(python, command, "run", "--out", "second", *small)
    assert (folder / "second" / "summary.json").is_file()
