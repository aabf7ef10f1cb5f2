"""Personal models at the end of a run: scored and written part by part, to the same bits as in one
piece.
"""

import json

import pytest
import torch

from equipoise.experiment import evaluation
from equipoise.experiment.runner import run
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.resources import ResourceConfig
from equipoise.simulation.client_store import ClientTable
from equipoise.simulation.multiprocess import MultiProcessExecutor
from equipoise.utils.pytree import index
from equipoise.utils.serialization import fill_stack, read_tensors, write_tensors

SMALL = {
    "task": "synthetic",
    "clients": 8,
    "samples": 60,
    "rounds": 3,
    "participation": 0.7,
    "alpha": 0.5,
}
LARGER = {**SMALL, "clients": 110, "samples": 20, "method": "scaffold"}  # two chunks


def _stacks(rows, start=0):
    numbers = torch.arange(start, start + rows)
    return {
        "client_ids": numbers,
        "ü": numbers[:, None, None].expand(rows, 2, 3) / 7,
        "a": numbers.half(),
        "yes": numbers % 2 > 0,
        "none": torch.empty(rows, 0),
    }


def _parts(stacks, sizes):
    first = 0
    for size in sizes:
        yield index(stacks, slice(first, first + size))
        first += size


@pytest.mark.parametrize("sizes", [(5,), (2, 2, 1), (1, 1, 1, 1, 1)])
def test_a_file_written_in_parts_is_that_of_one_piece(sizes, tmp_path):
    stacks = _stacks(5)
    fill_stack(tmp_path / "parts", 5, _parts(stacks, sizes))
    write_tensors(tmp_path / "whole", stacks)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_of_nobody_too(tmp_path):
    fill_stack(tmp_path / "parts", 0, [_stacks(0)])
    write_tensors(tmp_path / "whole", _stacks(0))
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_short_checksum_leaves_blanks_and_nothing_else(tmp_path):
    """The header is written last, into room for the longest checksum."""
    more = set()
    for start in range(40):
        fill_stack(tmp_path / "parts", 5, _parts(_stacks(5, start), (3, 2)))
        write_tensors(tmp_path / "whole", _stacks(5, start))
        parts, whole = ((tmp_path / name).read_bytes() for name in ("parts", "whole"))
        lengths = [8 + int.from_bytes(data[:8], "little") for data in (parts, whole)]
        assert parts[8 : lengths[0]].rstrip() == whole[8 : lengths[1]].rstrip()
        assert parts[lengths[0] :] == whole[lengths[1] :]
        more.add(lengths[0] - lengths[1])
        tensors, about = read_tensors(tmp_path / "parts")
        assert tensors["client_ids"].tolist() == list(range(start, start + 5))
        assert about == {}
    assert more <= {0, 8}


def _finished(folder, given, processes=1):
    run(ExperimentConfig.from_options(given), folder, resources=ResourceConfig(processes=processes))
    files = [*sorted((folder / "models").iterdir()), folder / "clients.csv"]
    summary = json.loads((folder / "summary.json").read_text())
    return {file.name: file.read_bytes() for file in files}, {
        **summary,
        "seconds": 0,
        "executor": "",
    }


@pytest.mark.parametrize("name", ["scaffold", "ditto", "page"])
def test_parts_give_the_scores_and_files_of_one_piece(name, tmp_path, monkeypatch):
    whole = _finished(tmp_path / "whole", {**SMALL, "method": name})
    monkeypatch.setattr(evaluation, "CLIENTS_PER_BATCH", 3)
    assert _finished(tmp_path / "parts", {**SMALL, "method": name}) == whole


@pytest.mark.parametrize("processes", [1, 2])
def test_no_more_than_a_part_is_ever_in_memory(processes, tmp_path, monkeypatch):
    whole = _finished(tmp_path / "whole", LARGER)
    taken = []

    def counted(owner, name, rows_of):
        ask = getattr(owner, name)

        def count(self, which, *others):
            if (
                owner is MultiProcessExecutor or "weight" in self._template
            ):  # models, not the few numbers of scores
                taken.append(rows_of(which))
            return ask(self, which, *others)

        monkeypatch.setattr(owner, name, count)

    def last_round(record):
        if record.round == LARGER["rounds"]:
            for name, rows_of in (("take", len), ("first", int), ("view", int)):
                counted(ClientTable, name, rows_of)
            counted(MultiProcessExecutor, "gather_state", len)

    monkeypatch.setattr(evaluation, "CLIENTS_PER_BATCH", 20)
    run(
        ExperimentConfig.from_options(LARGER),
        tmp_path / "run",
        on_round_end=last_round,
        resources=ResourceConfig(processes=processes),
    )
    assert max(taken) == 20
    assert (tmp_path / "run" / "clients.csv").read_bytes() == whole[0]["clients.csv"]
    assert (tmp_path / "run" / "models" / "personal.safetensors").read_bytes() == whole[0][
        "personal.safetensors"
    ]
