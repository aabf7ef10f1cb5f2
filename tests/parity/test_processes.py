"""Many processes give the numbers of one, to the bit; they end when they should, and a run outlives
any of them.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import equipoise as eq
from data.test_tasks import small_task as small_images
from equipoise.cli import main
from equipoise.experiment import multiprocess
from equipoise.experiment.runner import Interrupted, resume_run, run
from equipoise.methods import find_method
from equipoise.privacy.config import PrivacyConfig
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.resources import ResourceConfig
from equipoise.simulation import aggregation_guard
from equipoise.simulation.executor_selection import to_device
from equipoise.simulation.executors import Loop, Stacked
from equipoise.simulation.ipc import FIRST_PART_BYTES, TorchrunGroup, WorkerLost, backend_of
from equipoise.simulation.multiprocess import (
    MultiProcessExecutor,
    Worker,
    WorkerSpeed,
    assign_chunks,
    serve,
)
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from equipoise.wrappers.differential_privacy import with_differential_privacy
from helpers import largest_difference, small_task, timeless
from helpers_device import FAR, FarTensor, Pretended
from helpers_own import BY_ERROR

SMALL = {
    "task": "synthetic",
    "clients": 230,
    "samples": 20,
    "rounds": 4,
    "participation": 0.9,
    "checkpoint_every": 2,
}
SCAFFOLD = ExperimentConfig.from_options({**SMALL, "method": "scaffold"})


def test_the_longest_first_by_hand():
    assert assign_chunks([3.0, 1.0, 2.0, 2.0], [1.0, 1.0]) == [0, 0, 1, 1]
    assert assign_chunks([1.0, 5.0], [1.0] * 3) == [1, 0]
    assert assign_chunks([2.0, 2.0, 2.0], [1.0]) == [0, 0, 0]
    assert assign_chunks([4.0, 4.0, 4.0], [1.0, 2.0]) == [
        0,
        1,
        0,
    ]  # 8 on either: of equals the idle one
    assert assign_chunks([4.0] * 6, [1.0, 2.0]) == [
        0,
        1,
        0,
        0,
        1,
        0,
    ]  # ends at 16, in equal parts at 24
    assert assign_chunks([4.0, 4.0], [1.5, 1.0]) == [0, 1]  # changing places would gain nothing


def test_a_process_that_takes_twice_as_long_gets_less():
    pace = WorkerSpeed(3)
    for process in range(3):
        pace.update(
            process, 100.0, 9.0 * process
        )  # the first time, when everything is loaded, says nothing
    assert pace.step_times == [1.0, 1.0, 1.0]
    pace.update(0, 100.0, 1.0)
    pace.update(1, 100.0, 2.0)
    assert pace.step_times == [1.0, 2.0, 1.0]  # the third has not been seen
    pace.update(1, 100.0, 1.1)  # (2 + 1.1) / 2
    assert pace.step_times == [1.0, 1.5, 1.0]
    pace.update(0, 100.0, 1.2)  # a little slower is chance
    assert pace.step_times == [1.0, 1.5, 1.0]
    pace.update(1, 0.0, 0.0)  # had nothing to do: (1.55 + 1.1) / 2, so that it gets its turn again
    assert pace.step_times == [1.0, 1.0, 1.0]


def _simulate(kind, method, task, processes, rounds=3, participation=0.9):
    """In float64, on the simulation itself; gives its state and its records."""
    inner = partial(kind, method, task, task.info.training, 0, rounds)
    schedule = RoundLoopConfig(rounds, 0, participation, kind.__name__.lower(), 1, True)

    def finished(make):
        simulation = FederatedSimulation(method, task, task.info.training, schedule, make)
        records = [timeless(simulation.run_round()) for _ in range(rounds)]
        return simulation.state_dict(), records, simulation.personal_models()[1]

    if processes == 1:
        return finished(lambda *_: inner())
    with multiprocess.fork_workers(
        processes, lambda group: serve(Worker(inner(), group, True), group)
    ) as group:
        spread = MultiProcessExecutor(Worker(inner(), group, True), group)
        result = finished(lambda *_: spread)
        spread.close()
        group.leave()
    return result


@pytest.mark.parametrize(
    ("name", "clients", "numbers"),
    [
        *(("fedavg", 230, (2, 3)), ("scaffold", 230, (2, 3))),
        *((name, 120, (2,)) for name in ("ditto", "autopilot", "page", BY_ERROR)),
    ],
)
def test_any_number_of_processes_is_one_to_the_bit(name, clients, numbers):
    """Four chunks, or two; with sums, and with every upload."""
    method, task = find_method(name)(), small_task("linear", clients=clients, samples=20)
    state, records, models = _simulate(Stacked, method, task, 1)
    for processes in numbers:
        others = _simulate(Stacked, method, task, processes)
        assert largest_difference(state["params"], others[0]["params"]) == 0.0
        assert str(state.keys()) == str(others[0].keys())
        for mine, theirs in zip(_leaves(state), _leaves(others[0]), strict=True):
            assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0))
        assert records == others[1]
        assert largest_difference(models, others[2]) == 0.0


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "page"])
def test_changes_are_compared_with_their_mean_alike_in_two_processes(name, monkeypatch):
    """Honest clients hardly oppose: the half that is nearest to the mean is limited instead."""

    def near_the_mean(weights, norms, dots, mean_norm):
        usual = dots.median()
        return torch.where(dots > usual, usual / dots, torch.ones_like(dots))

    monkeypatch.setattr(aggregation_guard, "opposition_factors", near_the_mean)
    method, task = find_method(name)(), small_task("linear", clients=120, samples=20)
    state, records, _ = _simulate(Stacked, method, task, 1)
    others = _simulate(Stacked, method, task, 2)
    assert any(len(record.shrunk) > 20 for record in records)
    assert largest_difference(state["params"], others[0]["params"]) == 0.0
    assert records == others[1]


def test_moves_of_a_memory_are_bounded_alike_in_two_processes(monkeypatch):
    """Honest clients are hardly limited: a third of every move is allowed instead."""
    name = "equipoise.methods.scaffold.memory_factors"
    monkeypatch.setattr(name, lambda moved, moves: 1 / (3 + moves.abs()))
    method, task = find_method("scaffold")(), small_task("linear", clients=120, samples=20)
    state, records, _ = _simulate(Stacked, method, task, 1)
    others = _simulate(Stacked, method, task, 2)
    assert any(len(record.shrunk) > 20 for record in records)
    assert largest_difference(state["params"], others[0]["params"]) == 0.0
    assert records == others[1]


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_chunks_that_one_process_computes_as_one_stack_too(model, monkeypatch):
    """Everybody takes part, with equally many rows."""
    stacks = []
    plain = Stacked.run_chunk

    def chunk(self, request):
        stacks.append(len(request.ids))
        return plain(self, request)

    monkeypatch.setattr(Stacked, "run_chunk", chunk)
    method, task = (
        find_method("fedavg")(),
        small_task(model, clients=128, samples=20, size_sigma=0.0),
    )
    state, records, _ = _simulate(Stacked, method, task, 1, participation=1.0)
    assert stacks == [64, 64, 128, 128, 128]  # the first round tries both
    others = _simulate(Stacked, method, task, 2, participation=1.0)
    assert largest_difference(state, others[0]) == 0.0
    assert records == others[1]


def test_processes_that_were_launched_are_one_to_the_bit_too(monkeypatch):
    """Over torch.distributed, where a message leaves only when the other takes it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        for name, value in (("ADDR", "127.0.0.1"), ("PORT", str(free.getsockname()[1]))):
            monkeypatch.setenv(f"MASTER_{name}", value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    method, task = find_method("scaffold")(), small_task("linear", clients=120, samples=20)
    inner = partial(Stacked, method, task, task.info.training, 0, 3)
    state, records, _ = _simulate(Stacked, method, task, 1)

    def follow(group):
        group = TorchrunGroup(group.rank, group.size)
        serve(Worker(inner(), group, True), group)

    with multiprocess.fork_workers(2, follow) as unused:
        unused.leave()
        group = TorchrunGroup(0, 2)
        spread = MultiProcessExecutor(Worker(inner(), group, True), group)
        simulation = FederatedSimulation(
            method,
            task,
            task.info.training,
            RoundLoopConfig(3, 0, 0.9, "stacked", 1, True),
            lambda *_: spread,
        )
        assert [timeless(simulation.run_round()) for _ in range(3)] == records
        assert largest_difference(simulation.state_dict(), state) == 0.0
        spread.close()
        group.leave()


def test_what_goes_wrong_when_clients_settle_is_the_next_answer():
    calls = [{"do": name} for name in ("commit", "states", "commit", "evaluate", "end")]
    answers = []

    class Played:
        def receive(self, sender):
            return calls.pop(0)

        def send(self, to, answer):
            answers.append(answer)

        def wait_sent(self, under_way, to):
            pass

    class Failing:
        def answer(self, call):
            if len(calls) == 2:  # the second settling
                raise UsageError("no room on disk")
            return {} if call["do"] == "commit" else {"done": call["do"]}

    serve(Failing(), Played())
    assert answers == [{"done": "states"}, {"refused": "no room on disk"}]


def test_sums_that_come_with_replies_are_taken_only_if_all_count(monkeypatch):
    """A client whose upload is not finite is left out: its process is asked for the sums without
    it.
    """
    method, task = find_method("fedavg")(), small_task("linear", clients=120, samples=20)
    task.data.split(np.array([5]), "train").x[
        int(task.data.split(np.array([5]), "train").start[0])
    ] = torch.nan
    asked = []
    ask = MultiProcessExecutor.ask
    monkeypatch.setattr(
        MultiProcessExecutor,
        "ask",
        lambda self, calls: asked.append(calls[0]["do"]) or ask(self, calls),
    )
    state, records, _ = _simulate(Stacked, method, task, 1)
    others = _simulate(Stacked, method, task, 2)
    assert largest_difference(state["params"], others[0]["params"]) == 0.0
    assert records == others[1]
    assert any(5 in record.dropped for record in records)
    assert asked[:2] == ["run", "sums"]


def _leaves(tree):
    return [
        leaf
        for value in tree.values()
        for leaf in (_leaves(value) if isinstance(value, dict) else [value])
    ]


def _one_by_one(method, task, numbers):
    state, records, _ = _simulate(Loop, method, task, 1)
    for processes in numbers:
        others = _simulate(Loop, method, task, processes)
        assert largest_difference(state, others[0]) == 0.0
        assert records == others[1]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "fedala", "fedrod", "page"])
def test_one_by_one_too(name):
    task = small_task(clients=7, samples=24)
    # As a model that does not stack: every client is a chunk.
    task.info = replace(task.info, executor_depends_on_model=True)
    _one_by_one(find_method(name)(), task, (2, 3, 7))


def test_one_by_one_under_privacy():
    task = small_task("mlp", clients=7)
    task.info = replace(task.info, executor_depends_on_model=True)
    _one_by_one(
        with_differential_privacy(find_method("fedper")(), PrivacyConfig(0.5, 0.3)), task, (2,)
    )


def test_convolutional_models_too():
    _one_by_one(find_method("fedavg")(), small_images("cnn"), (2,))


def test_an_error_in_another_process_is_shown_where_it_matters(monkeypatch, tmp_path):
    here = os.getpid()

    def update(self, client):
        if os.getpid() != here:
            raise ValueError("out of luck")
        return client.fit(client.start), client.state

    monkeypatch.setattr(find_method("fedavg"), "train", update)
    with pytest.raises(RuntimeError, match=r"(?s)process 2 of 2 failed.*out of luck"):
        run(
            ExperimentConfig.from_options(SMALL),
            tmp_path / "run",
            resources=ResourceConfig(processes=2),
        )


def test_a_process_for_each_of_two_devices():
    """Both pretended, since the mode goes with the fork; uploads and states
    are at home in either.
    """
    method, task = find_method("scaffold")(), small_task("mlp", clients=230, samples=20)
    with Pretended():
        state, records, _ = _simulate(Stacked, method, task.to(FAR), 1, rounds=2)
        others = _simulate(Stacked, method, task.to(FAR), 2, rounds=2)
    assert not any(isinstance(leaf, FarTensor) for leaf in _leaves(others[0]))
    assert largest_difference(state, others[0]) == 0.0
    assert records == others[1]


def test_long_messages_of_devices_travel_between_devices(monkeypatch):
    """A wire is pretended: short parts and what may cross lie in main memory, the rest on the
    device.
    """
    wire, group = [], TorchrunGroup.__new__(TorchrunGroup)
    group.rank, group.size, group._send_device = 0, 2, FAR
    monkeypatch.setattr(dist, "isend", lambda part, to: wire.append(part))
    monkeypatch.setattr(dist, "recv", lambda into, sender: into.copy_(wire.pop(0)))
    long = {"rows": torch.randn(FIRST_PART_BYTES)}
    with Pretended():
        for message, crossing, there in (
            (long, False, [False, True]),
            (long, True, [False] * 2),
            ({}, False, [False]),
        ):
            group.send(1, message, crossing)
            assert [isinstance(part, FarTensor) for part in wire] == there
            assert largest_difference(group.receive(1, crossing), message) == 0.0


def test_devices_of_cuda_meet_by_nccl_where_torch_has_it(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert backend_of(torch.device("cuda", 1)) == "cpu:gloo,cuda:nccl"
    assert backend_of(torch.device("cpu")) == "gloo"
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert backend_of(torch.device("cuda", 1)) == "gloo"


def _models(folder):
    return {file.name: file.read_bytes() for file in sorted((folder / "models").iterdir())}


def _log(folder):
    return [
        {**json.loads(line), "seconds": 0, "crc": ""}
        for line in (folder / "rounds.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    run(SCAFFOLD, folder)
    return folder


def _same(one, other):
    assert _log(one) == _log(other)
    assert _models(one) == _models(other)
    assert (one / "clients.csv").read_bytes() == (other / "clients.csv").read_bytes()


def test_a_run_cut_and_resumed_with_other_numbers_of_processes(alone, tmp_path):
    def cut(at, record):
        if record.round == at:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(
            SCAFFOLD,
            tmp_path / "run",
            on_round_end=partial(cut, 3),
            resources=ResourceConfig(processes=3),
        )
    with pytest.raises(Interrupted):
        resume_run(tmp_path / "run", on_round_end=partial(cut, 3))
    resume_run(tmp_path / "run", resources=ResourceConfig(processes=2))
    _same(alone, tmp_path / "run")


def _children():
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
    )
    return {int(pid) for pid in found.stdout.split() if Path(f"/proc/{pid}/cmdline").exists()}


@pytest.mark.parametrize("at", [1, 3])  # before the first checkpoint, and after it
def test_a_process_that_is_killed_ends_the_round_and_the_run_goes_on(at, alone, tmp_path):
    before = _children()

    def kill(record):
        if record.round == at:
            os.kill(max(_children() - before), signal.SIGKILL)

    with pytest.raises(WorkerLost, match=r"process . of 3 has ended"):
        run(SCAFFOLD, tmp_path / "run", on_round_end=kill, resources=ResourceConfig(processes=3))
    assert not {
        pid
        for pid in _children() - before
        if Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    }
    assert (tmp_path / "run" / "checkpoint" / "last.safetensors").exists() == (at > 1)
    assert main(["resume", str(tmp_path / "run"), "--processes", "2", "--quiet"]) == 0
    _same(alone, tmp_path / "run")


def test_processes_end_with_a_leader_that_is_killed(tmp_path):
    command = [
        sys.executable,
        "-m",
        "equipoise",
        "run",
        "--task",
        "synthetic",
        "--clients",
        "230",
        "--rounds",
    ]
    leader = subprocess.Popen(
        [*command, "100000", "--processes", "3", "--quiet", "--out", str(tmp_path / "run")]
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (tmp_path / "run" / "rounds.jsonl").exists():
        time.sleep(0.05)
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(leader.pid)], capture_output=True, text=True, check=True
    )
    others = [int(pid) for pid in found.stdout.split()]
    leader.kill()
    leader.wait()
    assert len(others) == 2
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in others):
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in others)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attack": "flip:0.1"}, "see those of all others"),
        ({"task": "two-state", "method": "fedsynq"}, "are stepped together, in one process"),
    ],
)
def test_what_one_process_must_do_alone_is_refused(options, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        run(
            ExperimentConfig.from_options({**options, "rounds": 1}),
            tmp_path / "run",
            resources=ResourceConfig(processes=2),
        )


@pytest.mark.parametrize("more", [{"attack": "labels:0.2"}, {"executor": "loop", "clients": 12}])
def test_hostile_rows_and_clients_one_by_one_are_shared_too(more, tmp_path):
    settings = ExperimentConfig.from_options({**SMALL, **more, "rounds": 2})
    run(settings, tmp_path / "one", resources=ResourceConfig(processes=1))
    run(settings, tmp_path / "two", resources=ResourceConfig(processes=2))
    _same(tmp_path / "one", tmp_path / "two")


def test_fewer_than_no_processes_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"processes is -1: must be a whole number in \[0, 1024\]"):
        run(
            ExperimentConfig.from_options({}),
            tmp_path / "run",
            resources=ResourceConfig(processes=-1),
        )


def test_processes_are_started_unasked_where_they_save_time(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocess, "available_cores", lambda: 2)
    told = []
    run(SCAFFOLD, tmp_path / "short", on_message=told.append)
    assert told == []  # too short to look at
    monkeypatch.setattr(multiprocess, "MIN_STEP_SECONDS", 1.0)
    monkeypatch.setattr(multiprocess, "seconds_per_step", lambda *_: 0.0)
    run(SCAFFOLD, tmp_path / "looked", on_message=told.append)
    assert told.pop().startswith("one process: local training takes one about 0 ms")
    monkeypatch.setattr(multiprocess, "seconds_per_step", lambda *_: 1.0)
    run(SCAFFOLD, tmp_path / "long", on_message=told.append)
    assert told.pop().startswith("2 processes share the clients: local training takes one about")
    assert json.loads((tmp_path / "long" / "summary.json").read_text())["executor"].endswith(
        "2 processes"
    )
    _same(alone, tmp_path / "short")
    _same(alone, tmp_path / "long")


def test_processes_and_memory_in_python(alone, tmp_path):
    given = {**SMALL, "method": "scaffold"}
    with pytest.raises(eq.UsageError, match="client_memory_gib is -1"):
        eq.run(tmp_path / "other", **given, client_memory_gib=-1)
    both = eq.compare(
        ["scaffold"], seeds=1, out=tmp_path / "both", processes=2, client_memory_gib=0, **SMALL
    )
    _same(alone, both.runs["scaffold"][0].folder)


def test_processes_of_compare_and_tune_as_typed(tmp_path):
    small = [
        part
        for name, value in SMALL.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    how = ["--processes", "2", "--client-memory-gib", "0.5", "--quiet", *small, "--rounds", "1"]
    assert (
        main(
            [
                "compare",
                "--methods",
                "fedavg",
                "--seeds",
                "1",
                *how,
                "--out",
                str(tmp_path / "compare"),
            ]
        )
        == 0
    )
    summary = json.loads((tmp_path / "compare" / "fedavg" / "seed-0" / "summary.json").read_text())
    assert summary["executor"].endswith("2 processes")
    assert main(["resume", str(tmp_path / "compare"), "--processes", "1", "--quiet"]) == 0


def test_torchrun_is_for_one_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    small = "--clients 4 --samples 40 --rounds 1 --quiet".split()
    assert main(["compare", "--methods", "fedavg", *small, "--out", str(tmp_path / "compare")]) == 2
    assert "use it with 'equipoise run'" in capsys.readouterr().err


def test_processes_of_torchrun_take_one_device_each(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    task = small_task()
    task.to = lambda device: device
    assert to_device(task, "auto") == torch.device("cuda", 1)
    assert to_device(task, "cuda:0") == torch.device("cuda", 0)


# A process of torchrun that kills itself once, in its third round.
FRAIL = """
import os, signal, sys
from pathlib import Path
from equipoise.simulation.multiprocess import Worker
run, mark = Worker.run, Path(sys.argv.pop(1))
def frail(self, call):
    if call["round"] == 3 and self.group.rank == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return run(self, call)
Worker.run = frail
from equipoise.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_torchrun_restarts_and_the_run_goes_on_to_the_same_bits(alone, tmp_path):
    script = tmp_path / "frail.py"
    script.write_text(FRAIL)
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
    ]
    meet = [
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:0",
        str(script),
        str(tmp_path / "died"),
    ]
    options = [
        part
        for name, value in SMALL.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = [
        "run",
        "--method",
        "scaffold",
        *options,
        "--quiet",
        "--resume",
        "--out",
        str(tmp_path / "run"),
    ]
    ended = subprocess.run(
        [*start, *meet, *command], timeout=300, check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "died").exists()
    _same(alone, tmp_path / "run")
