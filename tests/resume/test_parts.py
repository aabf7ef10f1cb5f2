"""What clients hold, in files and in parts of a checkpoint: the same numbers, whatever happens to
the disk.
"""

import shutil
from functools import partial

import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.data.datasets.synthetic import Synthetic, SyntheticConfig
from equipoise.experiment import checkpoint
from equipoise.experiment.checkpoint import ShardedRows
from equipoise.experiment.runner import Interrupted, resume_run, run
from equipoise.methods import find_method
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.resources import ResourceConfig
from equipoise.simulation import client_store as rows_of
from equipoise.simulation.client_store import ClientTable, MemoryBudget
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils import serialization
from equipoise.utils.errors import UsageError
from helpers import largest_difference, small_task, timeless
from helpers_disk import Died, Faulty, Forgetful, Quick, on
from helpers_records import unfinish
from trust.test_faults import result, same

RUN = (
    "run --method scaffold --clients 4 --participation 0.5 --samples 30 --rounds 4 "
    "--checkpoint-every 1"
).split()
RUN += "--epochs 1 --batch-size 10 --executor stacked --quiet".split()


def _stack(rows, start=0.0):
    numbers = torch.arange(rows, dtype=torch.float32) + start
    return {
        "w": numbers[:, None, None].expand(rows, 2, 3).clone(),
        "deep": {
            "n": numbers.long(),
            "yes": numbers > 2,
            "d": numbers.double()[:, None] / 3,
            "none": numbers.new_empty(rows, 0),
        },
    }


@pytest.mark.parametrize("memory", [0, 200, 10**6])  # none, some and all of the rows are in memory
@pytest.mark.parametrize("promised", [0, 2**32])
def test_rows_are_what_was_written_wherever_they_lie(memory, promised, tmp_path, monkeypatch):
    monkeypatch.setattr(rows_of, "SHARD_BYTES", 3 * 256)  # three records a file
    monkeypatch.setattr(rows_of, "MAX_RESERVED_BYTES", promised)
    rows = ClientTable(_stack(1), 9, MemoryBudget(memory, tmp_path))
    rows.write(torch.arange(2), _stack(2))
    rows.write(torch.arange(9), _stack(9))
    rows.write(torch.tensor([7, 1, 4]), _stack(3, 100.0))
    found = rows.take(torch.tensor([4, 0, 8, 1, 7, 4]))
    assert found["w"][:, 0, 0].tolist() == [102, 0, 8, 101, 100, 102]
    assert found["deep"]["n"].tolist() == [102, 0, 8, 101, 100, 102]
    assert found["deep"]["yes"].tolist() == [True, False, True, True, True, True]
    assert torch.equal(
        found["deep"]["d"][:, 0], torch.tensor([102, 0, 8, 101, 100, 102]).double() / 3
    )
    assert found["deep"]["none"].shape == (6, 0)
    rows.fill_missing(0, 2)
    assert rows.first(9)["w"].isnan().flatten(1).all(1).tolist() == [True] * 2 + [False] * 7
    rows.prefetch(torch.tensor([0, 8]))
    assert not list(
        tmp_path.iterdir()
    )  # files without names: nothing is left, however the process ends


def test_rows_that_were_lent_do_not_change():
    rows, mine = ClientTable(_stack(1), 3, MemoryBudget()), _stack(3)
    assert rows.replace(mine)
    lent = rows.first(3)
    assert lent["w"] is mine["w"]
    rows.write(torch.tensor([1]), _stack(1, 50.0))
    assert lent["w"][:, 0, 0].tolist() == [0, 1, 2]
    assert rows.first(3)["w"][:, 0, 0].tolist() == [0, 50, 2]


def test_a_disk_without_room_is_said_in_one_sentence(tmp_path):
    with pytest.raises(
        UsageError, match=r"no room on disk for what clients hold .* --client-memory-gib"
    ):
        ClientTable(_stack(1), 9, MemoryBudget(0, tmp_path / "absent")).write(
            torch.arange(1), _stack(1)
        )


@pytest.mark.parametrize("name", ["scaffold", "page", "ditto"])
@pytest.mark.parametrize("memory", [0, 2000])
def test_where_rows_lie_changes_no_number(name, memory):
    def finished(room):
        task = small_task(clients=10)
        schedule = RoundLoopConfig(5, 0, 0.4, "stacked", 2, True)
        simulation = FederatedSimulation(
            find_method(name)(), task, task.info.training, schedule, memory_budget=room
        )
        records = [timeless(simulation.run_round()) for _ in range(5)]
        return simulation.state_dict(), records, simulation.personal_models()

    state, records, (ids, models) = finished(None)
    others = finished(MemoryBudget(memory))
    assert largest_difference(state, others[0]) == 0
    assert records == others[1]
    assert ids.tolist() == others[2][0].tolist()
    assert largest_difference(models, others[2][1]) == 0


def _written(folder):
    return {file.name: len(serialization.load(file)[0]["ids"]) for file in folder.glob("clients-*")}


def test_a_part_holds_what_changed_and_small_or_stale_ones_are_joined(tmp_path):
    values = np.zeros(8)
    parts = ShardedRows(tmp_path, 8)

    def save(*changed):
        values[list(changed)] += 1
        parts.add(np.array(changed, np.int64), 1, lambda ids: {"v": torch.from_numpy(values[ids])})
        parts.remove_unused_files()
        again, found = ShardedRows(tmp_path, 8), np.full(8, np.nan)
        for ids, rows in again.load(parts.files):
            assert np.isnan(found[ids]).all()  # each client once
            found[ids] = rows["v"].numpy()
        assert found[~np.isnan(found)].tolist() == values[values > 0].tolist()
        return _written(tmp_path)

    assert save(0, 1, 2, 3, 4, 5) == {"clients-1.safetensors": 6}
    assert save(6) == {"clients-1.safetensors": 6, "clients-2.safetensors": 1}
    assert save(6) == {
        "clients-1.safetensors": 6,
        "clients-3.safetensors": 1,
    }  # nothing of the second counts
    assert save(7) == {
        "clients-1.safetensors": 6,
        "clients-4.safetensors": 2,
    }  # as small as what is new: joined
    assert save(0, 1, 2, 3)["clients-5.safetensors"] == 8  # most of the first was out of date
    assert save() == {"clients-5.safetensors": 8}


def test_files_are_few_and_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_FILE_BYTES", 64)
    parts = ShardedRows(tmp_path, 400)
    with on(Quick()):
        for first in range(0, 400, 2):
            parts.add(np.arange(first, first + 2), 1, lambda ids: {"v": torch.from_numpy(ids)})
            parts.remove_unused_files()
    assert sum(parts.files.values()) == 400
    assert max(parts.files.values()) <= 64
    assert len(parts.files) < 20


@pytest.fixture
def in_parts(monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_SINGLE_FILE_BYTES", 0)
    monkeypatch.setattr("equipoise.report.html.try_write_report", lambda path: "")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_in_files_and_parts_cut_and_resumed_is_the_run(
    processes, in_parts, tmp_path, monkeypatch
):
    settings = ExperimentConfig.from_options(
        {
            "method": "scaffold",
            "clients": 300,
            "samples": 20,
            "participation": 0.5,
            "rounds": 5,
            "checkpoint_every": 1,
        }
    )
    with monkeypatch.context() as plain:
        plain.setattr(checkpoint, "MAX_SINGLE_FILE_BYTES", 2**30)
        run(settings, tmp_path / "whole")

    def cut(at, record):
        if record.round == at:
            raise Interrupted

    out, resources = tmp_path / "run", ResourceConfig(processes=processes, client_memory_gib=0)
    for at, begin in ((2, partial(run, settings, out)), (4, partial(resume_run, out))):
        with pytest.raises(Interrupted):
            begin(on_round_end=partial(cut, at), resources=resources)
        assert list((out / "checkpoint").glob("clients-*"))
    resume_run(out)
    same(result(out), result(tmp_path / "whole"))


def test_a_part_that_is_missing_or_damaged_is_named(in_parts, tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*RUN, "--out", str(out)]) == 0
    unfinish(out)
    part = next((out / "checkpoint").glob("clients-*"))
    for damage, words in (
        (lambda: part.write_bytes(part.read_bytes()[:-9]), "damaged"),
        (part.unlink, "is missing"),
    ):
        damage()
        assert main(["resume", str(out)]) == 2
        error = capsys.readouterr().err
        assert part.name in error
        assert words in error
        assert error.count("\n") == 1


def _attempt(arguments, disk):
    try:
        with on(disk):
            return main(arguments)
    except Died:
        return None


WAYS = [
    pytest.param(how, marks=pytest.mark.slow) for how in ("full", "torn", "after", "dies at any")
] + ["dies"]


@pytest.mark.parametrize("how", WAYS)
def test_parts_survive_a_fault_of_any_operation(how, in_parts, tmp_path):
    count = Faulty()
    assert _attempt([*RUN, "--out", str(tmp_path / "whole")], count) == 0
    expected = result(tmp_path / "whole")
    for n in range(1, count.count + 1, 5 if how == "dies" else 1):
        out = tmp_path / "run"
        _attempt([*RUN, "--out", str(out)], Faulty(n, how.split()[0]))
        assert _attempt([*RUN, "--out", str(out), "--resume"], Faulty()) == 0, n
        same(result(out), expected)
        shutil.rmtree(out)


@pytest.mark.slow
@pytest.mark.parametrize("names", [False, True])
def test_parts_survive_a_power_cut_at_any_operation(names, in_parts, tmp_path):
    assert main([*RUN, "--out", str(tmp_path / "whole")]) == 0
    expected, n, ended = result(tmp_path / "whole"), 0, None
    while ended is None:
        n += 1
        out = tmp_path / str(n) / "run"
        out.parent.mkdir()
        disk = Forgetful(out.parent, n, names)
        ended = _attempt([*RUN, "--out", str(out)], disk)
        disk.cut()
        assert main([*RUN, "--out", str(out), "--resume"]) == 0, n
        same(result(out), expected)


@pytest.mark.parametrize("given", [{}, {"size_sigma": 0.8, "alpha": 0.5}])
def test_sizes_of_a_large_population_are_known_without_its_rows(given):
    data = Synthetic(SyntheticConfig(clients=10**6, samples=40, **given), seed=3)
    ids = np.array([0, 5, 999_999])
    sizes = {name: data.sizes(ids, name) for name in ("train", "val", "test")}
    assert not data._generated
    for name, found in sizes.items():
        assert found.tolist() == data.split(ids, name).size.tolist()


@pytest.mark.parametrize("text", ["-1", "much"])
def test_a_memory_that_is_none_is_refused(text, capsys, tmp_path):
    assert main(["run", "--client-memory-gib", text, "--out", str(tmp_path / "run")]) == 2
    assert "client_memory_gib" in capsys.readouterr().err.replace("-", "_")
    assert not (tmp_path / "run").exists()
