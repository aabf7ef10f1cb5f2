"""Loop is the oracle: every method that ships gives the same run on every executor, to the last
digits of float64.
"""

import pytest

from equipoise.methods import all_methods
from helpers import largest_difference, simulate, small_task

SUPERVISED = {
    name: method
    for name, method in all_methods().items()
    if method().capabilities.learner_kind == "gradient"
}


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", SUPERVISED)
def test_stacked_equals_loop(name: str, participation: float) -> None:
    loop, stacked = (
        simulate(SUPERVISED[name](), small_task("mlp", samples=30), 3, executor, participation)
        for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-9
    for one, other in zip(loop.logs, stacked.logs, strict=True):
        assert one.bytes == other.bytes
        assert one.trained == pytest.approx(other.trained, abs=1e-9)


@pytest.mark.parametrize("closed_form", [True, False])
def test_linear_model_equals_loop_with_and_without_the_closed_form(closed_form: bool) -> None:
    method = SUPERVISED["fedavg"]()
    loop = simulate(method, small_task("linear"), 3, "loop")
    stacked = simulate(method, small_task("linear", closed_form=closed_form), 3, "stacked")
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-12
