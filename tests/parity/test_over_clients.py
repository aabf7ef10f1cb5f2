"""The map over clients by torch's private functions is its public one."""

import ast
from pathlib import Path

import pytest
import torch
from torch._C import _functorch

import equipoise
from equipoise.methods import find_method
from equipoise.simulation.client_runtime import call_mapped, over_clients
from equipoise.utils import torch_internals
from helpers import largest_difference, simulate, small_task

SOURCES = Path(equipoise.__file__).parent


def body(own, shared):
    doubled = call_mapped(lambda x: 2 * x, lambda x: 2 * x, own["w"])
    return {"out": doubled @ shared, "norm": doubled.norm(), "shared": shared}


@pytest.fixture
def unknown_version(monkeypatch):
    """A version of torch that the private functions were not tested with."""
    torch_internals.has_vmap_levels.cache_clear()
    monkeypatch.setattr(torch, "__version__", "3.0.0")
    yield
    torch_internals.has_vmap_levels.cache_clear()


def test_this_version_is_known_and_has_the_private_functions():
    """If not: run the tests of parity with the new version, then add it to TESTED_VERSIONS."""
    assert torch_internals.has_vmap_levels()
    names = ("_vmap_increment_nesting", "_vmap_decrement_nesting", "_add_batch_dim")
    more = ("_remove_batch_dim", "maybe_current_level")
    assert not [name for name in (*names, *more) if not hasattr(_functorch, name)]


def test_it_maps_as_the_public_call_does():
    stack, shared = torch.randn(5, 3, 4), torch.randn(4, 2)
    found = over_clients(body, (0, None), ({"w": stack}, shared), 5)
    public = torch.func.vmap(body, (0, None))({"w": stack}, shared)
    assert found.keys() == public.keys()
    assert all(torch.equal(found[name], public[name]) for name in found)
    assert torch.allclose(found["out"][3], 2 * stack[3] @ shared)


def test_the_fallback_maps_alike(unknown_version):
    assert not torch_internals.has_vmap_levels()
    stack, shared = torch.randn(5, 3, 4), torch.randn(4, 2)
    found = over_clients(body, (0, None), ({"w": stack}, shared), 5)
    assert torch.equal(found["out"], torch.stack([2 * w @ shared for w in stack]))
    assert found["shared"].shape == (5, 4, 2)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "fedrod", "page", "fedpolicy"])
def test_an_unknown_version_gives_the_same_bits(name, request):
    task = small_task("mlp")
    known = simulate(find_method(name)(), task)
    request.getfixturevalue("unknown_version")
    unknown = simulate(find_method(name)(), task)
    assert largest_difference(known.params, unknown.params) == 0.0
    assert largest_difference(known.store.state, unknown.store.state) == 0.0
    assert [log.decisions for log in known.logs] == [log.decisions for log in unknown.logs]


def test_the_step_of_adam_has_a_public_path(request):
    def after_three_steps():
        generator = torch.Generator().manual_seed(0)
        params = [torch.randn(4, 3, generator=generator, dtype=torch.float64)]
        moments = [[torch.zeros_like(params[0])] for _ in range(2)]
        for step in (1, 2, 3):
            grads = [torch.randn(4, 3, generator=generator, dtype=torch.float64)]
            torch_internals.adam_step(
                params, grads, *moments, step=step, lr=0.1, betas=(0.9, 0.999), eps=1e-8
            )
        return params[0]

    private = after_three_steps()
    request.getfixturevalue("unknown_version")
    assert torch.allclose(private, after_three_steps(), rtol=0, atol=1e-14)


def test_private_parts_of_torch_are_in_one_module():
    private = []
    for path in SOURCES.rglob("*.py"):
        if path.name == "torch_internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Attribute):
                names = [ast.unparse(node)]
            private += [
                f"{path.relative_to(SOURCES)}: {name}"
                for name in names
                if "(" not in name
                and name.partition(".")[0] in ("torch", "nn")
                and any(part.startswith("_") for part in name.split(".")[1:])
                and not name.endswith("__")
            ]
    assert not private
