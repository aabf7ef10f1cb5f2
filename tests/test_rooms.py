"""Packages: who may import whom, no cycles, and the files that a round crosses."""

import ast
import re
import sys
from pathlib import Path
from types import FrameType

from equipoise.methods.fedavg import FedAvg
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks import find_task

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "equipoise"


def _map() -> dict[str, set[str]]:
    """Room to the rooms that it may import, from the table in CONTRIBUTING.md."""
    rows = re.findall(
        r"^\| `(\w+)` \| (.*?) \| ?(.*?) ?\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    found: dict[str, set[str]] = {}
    for room, _, imports in rows:
        found[room] = (
            set(found) if imports == "all of the above" else set(re.findall(r"`(\w+)`", imports))
        )
    return found


def _imports() -> dict[str, dict[str, str]]:
    """Room to the rooms that it really imports, each with a file that does."""
    found: dict[str, dict[str, str]] = {}
    for file in SOURCE.rglob("*.py"):
        parts = file.relative_to(SOURCE).parts
        if len(parts) == 1:  # equipoise/__init__.py hands out what is public
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            for target in _targets(node):
                if target != parts[0] and (SOURCE / target).is_dir():
                    found.setdefault(parts[0], {})[target] = str(file.relative_to(ROOT))
    return found


def _targets(node: ast.AST) -> list[str]:
    if (
        isinstance(node, ast.ImportFrom)
        and node.module
        and node.module.split(".")[0] == "equipoise"
    ):
        parts = node.module.split(".")
        return [parts[1]] if len(parts) > 1 else [item.name for item in node.names]
    if isinstance(node, ast.Import):
        return [
            item.name.split(".")[1] for item in node.names if item.name.startswith("equipoise.")
        ]
    return []


def test_the_map_names_every_room():
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    assert set(_map()) == rooms


def test_nobody_imports_what_the_map_does_not_allow():
    allowed = _map()
    wrong = [
        f"{file} imports {target}, which {room} may not"
        for room, targets in _imports().items()
        for target, file in targets.items()
        if target not in allowed[room]
    ]
    assert wrong == []


def test_the_map_has_no_cycle():
    left = _map()
    while free := [room for room, imports in left.items() if not imports & left.keys()]:
        for room in free:
            del left[room]
    assert left == {}


def test_a_round_of_fedavg_crosses_at_most_20_files():
    """A reader follows one round, from `run_round` on, through at most 20 files.

    Counted: the files of the package whose functions a round of FedAvg on task synthetic enters
    with the default executor, evaluation included (20 files, some 320 calls from file to file).
    """
    spec = find_task("synthetic")
    task = spec.build(spec.config(clients=10, samples=30), "linear", spec.training, 0)
    schedule = RoundLoopConfig(3, 0, 1.0, "auto", 1, keep_models=False)
    simulation = FederatedSimulation(FedAvg(), task, task.info.training, schedule)
    simulation.run_round()  # what is done once is not part of a round
    files: set[str] = set()

    def enter(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(SOURCE)):
            files.add(str(Path(name).relative_to(SOURCE)))

    sys.setprofile(enter)
    try:
        simulation.run_round()
    finally:
        sys.setprofile(None)
    assert "simulation/server_loop.py" in files
    assert len(files) <= 20, sorted(files)
