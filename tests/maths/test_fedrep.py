import pytest

from equipoise.methods.fedrep import FedRep
from equipoise.records.rounds import Bytes
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_oracle import mean_by_size, train


def test_two_rounds_by_definition() -> None:
    task = small_task()
    body, head = task.info.blocks["backbone"], task.info.blocks["head"]
    run = simulate(FedRep(head_epochs=3), task, 2)
    models, average = [task.init_params(0)] * 6, {}
    for t in (1, 2):
        received = [{**model, **average} for model in models]
        models = [train(task, k, received[k], head, round=t, epochs=3) for k in range(6)]
        models = [train(task, k, models[k], body, round=t, stream=1) for k in range(6)]
        average = mean_by_size(task, models, body)
    for k in range(6):
        held = {name: value[k] for name, value in run.store.local_params.items()}
        assert largest_difference(held, {name: models[k][name] for name in held}) < 1e-12
    assert largest_difference({name: run.params[name] for name in average}, average) < 1e-12


def test_backbones_alone_travel_and_both_phases_are_counted() -> None:
    task = small_task(size_sigma=0.0)
    log = simulate(FedRep(head_epochs=10), task, 1).logs[0]
    size = sum(task.init_params(0)[name].nbytes for name in task.info.blocks["backbone"])
    assert log.bytes == Bytes(6 * size, 6 * size)
    assert log.logged["gradients"] == [(10 + 2) * 4] * 6


def test_unsound_use_is_refused() -> None:
    with pytest.raises(UsageError, match="one layer"):
        FedRep().check(small_task("linear"), small_task().info.training)
    with pytest.raises(UsageError, match="head_epochs"):
        FedRep(head_epochs=0).check(small_task(), small_task().info.training)
