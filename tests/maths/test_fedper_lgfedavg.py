"""FedPer and LG-FedAvg are mirrors: one block travels, the other is never sent nor overwritten."""

import pytest

from equipoise.core import Method
from equipoise.methods.fedper import FedPer
from equipoise.methods.lgfedavg import LgFedAvg
from equipoise.methods.local import Local
from equipoise.records.rounds import Bytes
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_oracle import mean_by_size, train

MIRRORS = pytest.mark.parametrize(
    ("method", "shared", "own"), [(FedPer(), "backbone", "head"), (LgFedAvg(), "head", "backbone")]
)


@MIRRORS
def test_two_rounds_by_definition(method: Method, shared: str, own: str) -> None:
    task = small_task()
    run = simulate(method, task, 2)
    start = task.init_params(0)
    first = [train(task, k, start) for k in range(6)]
    average = mean_by_size(task, first, task.info.blocks[shared])
    second = [train(task, k, {**first[k], **average}, round=2) for k in range(6)]
    for k in range(6):
        held = {name: value[k] for name, value in run.store.local_params.items()}
        assert largest_difference(held, {name: second[k][name] for name in held}) < 1e-12
    expected = mean_by_size(task, second, task.info.blocks[shared])
    assert largest_difference({name: run.params[name] for name in expected}, expected) < 1e-12
    assert (
        largest_difference(
            [run.params[n] for n in task.info.blocks[own]],
            [start[n] for n in task.info.blocks[own]],
        )
        == 0
    )


@MIRRORS
def test_alone_it_is_local_training_to_the_bit(method: Method, shared: str, own: str) -> None:
    task = small_task(clients=1)
    runs = [simulate(m, task, 3).store.local_params for m in (method, Local())]
    assert largest_difference(*runs) == 0


@MIRRORS
def test_only_its_block_is_billed_and_there_is_no_whole_global_model(
    method: Method, shared: str, own: str
) -> None:
    task = small_task()
    log = simulate(method, task, 1).logs[0]
    size = sum(task.init_params(0)[name].nbytes for name in task.info.blocks[shared])
    assert log.bytes == Bytes(6 * size, 6 * size)
    assert not log.global_


@MIRRORS
def test_one_layer_is_refused(method: Method, shared: str, own: str) -> None:
    task = small_task("linear")
    with pytest.raises(UsageError, match="one layer"):
        method.check(task, task.info.training)
