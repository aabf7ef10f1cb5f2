import pytest
import torch

from equipoise.methods.fedbabu import FedBabu
from equipoise.records.rounds import Bytes
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_oracle import mean_by_size, train


def test_two_rounds_by_definition_with_the_head_fixed() -> None:
    task = small_task()
    body, start = task.info.blocks["backbone"], task.init_params(0)
    run = simulate(FedBabu(tune_epochs=3), task, 2)
    first = mean_by_size(task, [train(task, k, start, body) for k in range(6)], body)
    received = {**start, **first}
    second = mean_by_size(task, [train(task, k, received, body, round=2) for k in range(6)], body)
    assert (
        largest_difference(run.params, {name: {**start, **second}[name] for name in run.params})
        < 1e-12
    )
    for name in task.info.blocks["head"]:
        assert bool((run.store.local_params[name] == start[name]).all())

    tuned = [train(task, k, received, round=2, epochs=3, stream=1) for k in range(6)]
    for k in range(6):
        personal = {name: value[k] for name, value in run.personal_models()[1].items()}
        assert largest_difference(personal, {name: tuned[k][name] for name in personal}) < 1e-12


def test_the_server_holds_a_whole_model_though_backbones_alone_travel() -> None:
    task = small_task()
    log = simulate(FedBabu(), task, 1).logs[0]
    size = sum(task.init_params(0)[name].nbytes for name in task.info.blocks["backbone"])
    assert log.bytes == Bytes(6 * size, 6 * size)
    assert 0 <= log.global_.acc <= 1


def test_unsound_use_is_refused() -> None:
    silent = small_task()
    for name in silent.info.blocks["head"]:
        torch.nn.init.zeros_(silent.module.get_parameter(name))
    with pytest.raises(UsageError, match="zero"):
        FedBabu().check(silent, silent.info.training)
    with pytest.raises(UsageError, match="one layer"):
        FedBabu().check(small_task("linear"), small_task().info.training)
    with pytest.raises(UsageError, match="tune_epochs"):
        FedBabu(tune_epochs=0).check(small_task(), small_task().info.training)
