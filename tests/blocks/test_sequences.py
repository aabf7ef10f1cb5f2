"""The character transformer, and how many clients of a stack are in memory together."""

import pytest
import torch
from torch import nn

from equipoise.core import LocalTrainRequest, RngContext
from equipoise.models import MODELS
from equipoise.models.batched import activation_bytes
from equipoise.models.lora import LoraConfig, add_adapters
from equipoise.models.transformer import CharacterTransformer
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError
from helpers import largest_difference, small_task


def test_no_place_sees_what_follows_and_the_last_is_computed_alone() -> None:
    torch.manual_seed(0)
    model = CharacterTransformer(6, 5).double()
    x = torch.randint(5, (3, 6))
    each = model.all_logits(x)
    assert torch.allclose(model(x), each[:, -1], atol=1e-12)
    other = x.clone()
    other[:, 4:] = (x[:, 4:] + 1) % 5
    assert torch.allclose(model.all_logits(other)[:, :4], each[:, :4], atol=1e-12)
    assert not torch.allclose(model.all_logits(other)[:, 4:], each[:, 4:])


def test_a_stack_of_transformers_with_adapters_is_one_after_another() -> None:
    torch.manual_seed(0)
    model = add_adapters(
        CharacterTransformer(6, 5).double(), LoraConfig(rank=2, targets="*.query,*.value"), 0
    )
    moving = {
        name: value.detach() for name, value in model.named_parameters() if value.requires_grad
    }
    assert {name.split(".")[2] for name in moving} == {"query", "value"}
    stack = {name: torch.randn(3, *value.shape).double() for name, value in moving.items()}
    x = torch.randint(5, (3, 4, 6))
    mapped = torch.func.vmap(
        lambda params, rows: torch.func.functional_call(model, params, (rows,))
    )(stack, x)
    for k in range(3):
        own = {name: value[k] for name, value in stack.items()}
        assert torch.allclose(
            mapped[k], torch.func.functional_call(model, own, (x[k],)), atol=1e-12
        )


def test_a_transformer_takes_characters_only() -> None:
    with pytest.raises(
        UsageError, match=r"model 'transformer' takes sequences .* shape \[1, 28, 28\]"
    ):
        MODELS["transformer"]((1, 28, 28), 10)


def test_what_a_row_keeps_is_what_its_gradient_needs() -> None:
    """In float64: 4 numbers of the input and 8 of tanh, which the last layer shares; frozen layers
    need no input.
    """
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x, every = torch.randn(1, 4).double(), dict(net.named_parameters())
    net.requires_grad_(False)

    def kept(*layers: str) -> int:
        learned = {name: value.clone() for name, value in every.items() if name[0] in layers}
        return activation_bytes(
            net, learned, lambda params: torch.func.functional_call(net, params, (x,))
        )

    assert kept("0", "2") == 8 * (4 + 8)
    assert kept("2") == 8 * 8


@pytest.mark.parametrize("rows", [1, 20])
def test_portions_change_memory_and_nothing_else(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = small_task()
    ids, start = torch.arange(task.info.num_clients), task.init_params(0)
    stack = {name: value.expand(len(ids), *value.shape).clone() for name, value in start.items()}
    fit = LocalTrainRequest(
        stack, ids % 3 + 1, torch.linspace(0.01, 0.1, len(ids)).double(), trainable=tuple(start)
    )
    when = RngContext(0, 1, task.info.training)
    whole = task.fit_stack(ids, fit, {}, when)[0]
    assert largest_difference(whole, stack) > 1e-3
    assert task.row_bytes() == 8 * (5 + 64), "the inputs and the hidden units"
    single = ExamplesTask("single", task.module, task.data, task.info.training)
    assert single.row_bytes() == 4 * (5 + 64), "of one row, not of the set that it lies in"
    monkeypatch.setattr("equipoise.tasks.supervised.MAX_ACTIVATION_BYTES", rows * task.row_bytes())
    assert largest_difference(task.fit_stack(ids, fit, {}, when)[0], whole) < 1e-12
