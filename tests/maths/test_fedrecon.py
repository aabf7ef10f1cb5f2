import pytest

from equipoise.methods.fedrecon import FedRecon
from equipoise.records.rounds import Bytes
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_oracle import mean_by_size, train


def test_two_rounds_by_definition() -> None:
    task = small_task()
    body, head = task.info.blocks["backbone"], task.info.blocks["head"]
    run = simulate(FedRecon(recon_epochs=3, support=0.4, server_lr=0.5), task, 2)
    start = task.init_params(0)
    g = {name: start[name] for name in body}
    for t in (1, 2):
        received = {**start, **g}  # the head starts anew in every round
        rebuilt = [
            train(task, k, received, head, round=t, epochs=3, data_range=(0.0, 0.4))
            for k in range(6)
        ]
        models = [
            train(task, k, rebuilt[k], body, round=t, data_range=(0.4, 1.0), stream=1)
            for k in range(6)
        ]
        average = mean_by_size(task, models, body)
        g = {name: g[name] + 0.5 * (average[name] - g[name]) for name in body}
    assert largest_difference({name: run.params[name] for name in g}, g) < 1e-12
    for k in range(6):
        personal = {name: value[k] for name, value in run.personal_models()[1].items()}
        expected = train(task, k, received, head, round=2, epochs=3, stream=2)
        assert largest_difference(personal, {name: expected[name] for name in personal}) < 1e-12


def test_nothing_about_the_head_is_kept_or_sent() -> None:
    task = small_task()
    run, start = simulate(FedRecon(), task, 3, participation=0.5), task.init_params(0)
    for name, value in run.store.state["l"].items():
        assert bool((value == start[name]).all())
    size = sum(start[name].nbytes for name in task.info.blocks["backbone"])
    assert all(log.bytes == Bytes(3 * size, 3 * size) for log in run.logs)
    assert not run.logs[-1].global_


def test_gradients_of_both_phases_are_counted_on_their_own_rows() -> None:
    notes = (
        simulate(FedRecon(recon_epochs=3, support=0.25), small_task(size_sigma=0.0), 1)
        .logs[0]
        .logged
    )
    assert notes["gradients"] == [3 * 1 + 2 * 3] * 6  # 28 rows: 7 and 21, in batches of 8


@pytest.mark.parametrize(
    "options", [{"support": 0.0}, {"support": 1.0}, {"recon_epochs": 0}, {"server_lr": -1.0}]
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        FedRecon(**options).check(small_task(), small_task().info.training)


def test_one_layer_is_refused() -> None:
    with pytest.raises(UsageError, match="one layer"):
        FedRecon().check(small_task("linear"), small_task().info.training)
