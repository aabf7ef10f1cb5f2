"""The map over clients by torch's inner calls is its public one."""

import inspect

import torch
from torch._C import _functorch
from torch._functorch import pyfunctorch, vmap

from equipoise.simulation import vmap_primitives

INNER = {
    _functorch: (
        *("_vmap_increment_nesting", "_vmap_decrement_nesting"),
        *("_add_batch_dim", "_remove_batch_dim", "maybe_current_level"),
    ),
    vmap: ("lazy_load_decompositions",),
    pyfunctorch: ("temporarily_pop_interpreter_stack",),
}


def test_torch_still_has_the_inner_calls():
    """If not: runtime/primitives.py must call what took their place, or fall back on
    torch.func.vmap.
    """
    gone = [
        f"{owner.__name__}.{name}"
        for owner, names in INNER.items()
        for name in names
        if not hasattr(owner, name)
    ]
    assert not gone, (
        f"torch {torch.__version__} has no {', '.join(gone)} any more: "
        "change equipoise.simulation.vmap_primitives"
    )
    source = inspect.getsource(vmap_primitives)
    assert all(name in source for names in INNER.values() for name in names)


def test_it_maps_as_the_public_call_does():
    stack, shared = torch.randn(5, 3, 4), torch.randn(4, 2)

    def body(own, all):
        doubled = vmap_primitives.call(lambda x: 2 * x, lambda x: 2 * x, own["w"])
        return {"out": doubled @ all, "norm": doubled.norm()}

    found = vmap_primitives.over_clients(body, (0, None), ({"w": stack}, shared), 5)
    public = torch.func.vmap(body, (0, None))({"w": stack}, shared)
    assert found.keys() == public.keys()
    assert all(torch.equal(found[name], public[name]) for name in found)
    assert torch.allclose(found["out"][3], 2 * stack[3] @ shared)
