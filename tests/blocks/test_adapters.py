"""Low-rank adapters: by definition, over a base that is held once, as
blocks that travel or stay.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import equipoise as eq
from equipoise.cli import main
from equipoise.core import Method
from equipoise.data.datasets.synthetic import Synthetic, SyntheticConfig
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedper import FedPer
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.methods.local import Local
from equipoise.models.batched import stacked_forward
from equipoise.models.lora import LoraConfig, LoraConv, LoraLinear, add_adapters
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import tree_bytes
from helpers import SMALL, TRAINING, largest_difference, simulate

BOTH = "rank=2 targets=0,2 names=shared,private train=4.*"


def net() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))


def task(adapter: str = BOTH, fresh: bool = False) -> ExamplesTask:
    data = Synthetic(SyntheticConfig(**SMALL), 0)
    plain = ExamplesTask("synthetic", net(), data, TRAINING, torch.float64, fresh=fresh)
    return plain.with_network("", adapter, "", 0) if adapter else plain


def moved(module: nn.Module) -> nn.Module:
    """With every adapter away from its start."""
    with torch.no_grad():
        for name, value in module.named_parameters():
            if name.endswith((".A", ".B")):
                value.normal_()
    return module


def test_a_linear_layer_learns_as_w_plus_ba() -> None:
    layer = nn.Linear(5, 3).double()
    module = moved(
        add_adapters(nn.Sequential(layer), LoraConfig(rank=2, names="one,two", alpha=6), 0)
    )
    own = module[0]
    assert isinstance(own, LoraLinear)
    x, weight = torch.randn(7, 5).double(), layer.weight
    for name in ("one", "two"):
        low = own.get_submodule(name)
        weight = weight + 3 * low.B @ low.A
    assert torch.allclose(module(x), nn.functional.linear(x, weight, layer.bias))


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(4, 6, (1, 3), groups=2), nn.Conv1d(4, 6, 3)]
)
def test_a_convolution_learns_as_w_plus_ba(layer: nn.Conv2d) -> None:
    layer = layer.double()
    module = moved(add_adapters(nn.Sequential(layer), LoraConfig(rank=2), 0))
    own = module[0]
    assert isinstance(own, LoraConv)
    x = torch.randn(2, 4, *[9] * len(layer.kernel_size)).double()
    low = own.get_submodule("adapter")
    change = torch.einsum("or,ri...->oi...", low.B.flatten(1), low.A)
    expected = layer(x) + own.convolve(x, change, stride=layer.stride, padding=layer.padding)
    assert torch.allclose(module(x), expected)


class Tower(nn.Module):
    """As vision transformers of others have it: a layer whose name is ``blocks``."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(nn.Linear(5, 6), nn.Tanh()), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(x))
        return out


def test_a_layer_may_be_called_blocks() -> None:
    data = Synthetic(SyntheticConfig(**SMALL), 0)
    plain = ExamplesTask("synthetic", Tower(), data, TRAINING, torch.float64)
    assert plain.info.blocks == {
        "backbone": ("blocks.0.weight", "blocks.0.bias"),
        "head": ("head.weight", "head.bias"),
    }
    low = plain.with_network("", "rank=2 targets=blocks.0 train=head.*", "", 0)
    assert low.info.blocks == {
        "adapter": ("blocks.0.adapter.A", "blocks.0.adapter.B"),
        "head": ("head.weight", "head.bias"),
    }
    assert simulate(FedPer(), low, rounds=1).logs[0].bytes.up == low.info.num_clients * 8 * 2 * (
        5 + 6
    )


@pytest.mark.parametrize("bias", [True, False])
def test_a_stacks_gradients_are_each_clients_own(bias: bool) -> None:
    """With respect to the adapters and to the rows that come from the layer before, two adapters in
    each layer.
    """
    layers = nn.Sequential(nn.Linear(5, 7, bias), nn.Tanh(), nn.Linear(7, 3, bias)).double()
    module = add_adapters(layers, LoraConfig(rank=2, names="one,two", alpha=6), 0)
    forward = stacked_forward(module)
    assert forward is not None
    stack = {
        name: torch.randn(4, *p.shape).double()
        for name, p in module.named_parameters()
        if p.requires_grad
    }
    x, to = torch.randn(4, 6, 5).double(), torch.randn(4, 6, 3).double()
    leaves = [value.requires_grad_() for value in (*stack.values(), x)]
    together = torch.autograd.grad((forward(stack, x) * to).sum(), leaves)
    for k in range(4):
        own = {name: value[k] for name, value in stack.items()}
        out = torch.func.functional_call(module, own, (x[k],))
        alone = torch.autograd.grad((out * to[k]).sum(), [*own.values(), x], allow_unused=True)
        assert all(torch.allclose(a[k], b) for a, b in zip(together[:-1], alone[:-1], strict=True))
        assert torch.allclose(together[-1][k], alone[-1][k])


def test_the_model_starts_as_its_base() -> None:
    x = task("").example_inputs(9)
    assert torch.equal(task().forward(task().init_params(0), x), task("").forward({}, x))


def test_only_adapters_and_the_head_are_in_a_model() -> None:
    here = task()
    adapters = [f"{layer}.{{}}.{part}" for layer in (0, 2) for part in ("A", "B")]
    assert here.info.blocks == {
        "shared": tuple(name.format("shared") for name in adapters),
        "private": tuple(name.format("private") for name in adapters),
        "head": ("4.weight", "4.bias"),
    }
    assert set(here.frozen) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_the_batched_form_is_that_of_each_client() -> None:
    here = task()
    by_hand = stacked_forward(here.module)
    assert by_hand is not None
    stack = {
        name: torch.randn(3, *value.shape).double() for name, value in here.init_params(0).items()
    }
    x = here.example_inputs(6).view(3, 2, 5)
    each = torch.stack(
        [here.forward({name: w[k] for name, w in stack.items()}, x[k]) for k in range(3)]
    )
    assert torch.allclose(by_hand(stack, x), each)


class Branched(nn.Module):
    """No sequence of layers, so it is mapped by vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.out = nn.Conv1d(1, 3, 2), nn.Linear(12, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.relu(self.fc(self.conv(x[:, None]).flatten(1))))
        return out


@pytest.mark.parametrize(
    "method", [FedAvg(), FedPer(keep="private"), FedPolicy(parts="full,shared,private+head")]
)
def test_executors_agree(method: Method) -> None:
    here = task()
    loop, stacked = (simulate(method, here, executor=executor) for executor in ("loop", "stacked"))
    assert largest_difference(loop.params, stacked.params) < 1e-10
    assert largest_difference(loop.store.local_params, stacked.store.local_params) < 1e-10


def test_executors_agree_on_a_network_that_is_no_sequence() -> None:
    data = Synthetic(SyntheticConfig(**SMALL), 0)
    here = ExamplesTask("synthetic", Branched(), data, TRAINING, torch.float64).with_network(
        "", "rank=2", "", 0
    )
    loop, stacked = (simulate(Local(), here, executor=executor) for executor in ("loop", "stacked"))
    assert largest_difference(loop.store.local_params, stacked.store.local_params) < 1e-10


def test_the_private_adapter_stays_and_the_shared_one_travels() -> None:
    here = task()
    done, start = simulate(FedPer(keep="private"), here, rounds=2), here.init_params(0)
    billed = tree_bytes(
        {name: start[name] for block in ("shared", "head") for name in here.info.blocks[block]}
    )
    assert done.logs[0].bytes.up == done.logs[0].bytes.down == here.info.num_clients * billed
    for name in here.info.blocks["private"]:
        assert torch.equal(done.params[name], start[name])
        assert not torch.equal(done.store.local_params[name][0], done.store.local_params[name][1])


def test_a_base_that_the_seed_draws_is_the_plain_models_start() -> None:
    plain, here = task("", fresh=True), task(fresh=True)
    assert all(
        torch.equal(plain.init_params(0)[name], value) for name, value in here.frozen.items()
    )


def test_what_is_kept_of_clients_does_not_hold_the_base() -> None:
    here = task("rank=1 targets=2")
    done = simulate(Local(), here, rounds=1)
    assert tree_bytes(done.store.local_params) == here.info.num_clients * 8 * (8 + 6)


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ("rank=0", "rank is 0"),
        ("rnk=2", "did you mean 'rank'"),
        ("rank=2 targets=fc", "targets=fc matches no layer; adapters fit 0, 2, 4"),
        ("rank=2 targets=1", "matches '1', a Tanh, and no linear or convolutional layer"),
        ("rank=2 train=fc.*", r"train=fc.\* matches no parameter"),
        ("rank=2 targets=4 train=4.*", "no linear or convolutional layer for an adapter"),
        ("rank=2 names=weight", "'weight' cannot be the name"),
        ("rank=2 names=a,a", "a name of its own"),
    ],
)
def test_adapters_that_do_not_fit_are_one_sentence(adapter: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        task(adapter)


def test_from_python_and_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(40, 5)).astype(np.float32), rng.integers(0, 4, 40)) for _ in range(3)]
    given = eq.Task.from_datasets(rows, model=net(), adapter="rank=2")
    run = eq.run(tmp_path / "run", task=given, rounds=2)
    assert torch.equal(run.model().state_dict()["0.weight"], net()[0].weight)
    assert set(load_file(tmp_path / "run" / "models" / "global.safetensors")) == {
        f"{layer}.adapter.{part}" for layer in (0, 2, 4) for part in ("A", "B")
    }


def test_from_the_command_line_over_the_model_of_an_earlier_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "run --task synthetic --clients 4 --rounds 1 --model mlp --classes 10 --quiet".split()
    assert main([*given, "--out", str(tmp_path / "base")]) == 0
    base = tmp_path / "base" / "models" / "global.safetensors"
    adapter = ["--init-weights", str(base), "--adapter", "rank=2 names=shared,private"]
    policy = ["--method", "fedpolicy", "--parts", "full,shared,private"]
    assert main([*given, *adapter, *policy, "--out", str(tmp_path / "run")]) == 0
    frozen, before = load_file(tmp_path / "run" / "models" / "frozen.safetensors"), load_file(base)
    assert all(torch.equal(frozen[name], value) for name, value in before.items())
    save_file({"other": torch.zeros(1)}, tmp_path / "odd.safetensors")
    for file, words in (
        ("none.safetensors", "must be a safetensors file"),
        ("odd.safetensors", "'other' is not in"),
    ):
        assert (
            main([*given, "--init-weights", str(tmp_path / file), "--out", str(tmp_path / "no")])
            == 2
        )
        assert words in capsys.readouterr().err
