"""Energy of a client's round (PAGE, appendix D) and the price that it puts on epochs.

Every parameter varies: a client has its own place in the range, and each round moves it within ``SWING`` of the range.
The budget E_i(t) is what so many epochs would cost the client at its usual parameters, its radio included.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from equipoise.core import Client, DeviceProfile, LocalHParams, Params, State
from equipoise.utils import rng
from equipoise.utils.errors import UsageError, nearest
from equipoise.utils.pytree import tree_bytes

DEVICES = "devices"
NAMED = ("default", DEVICES)
"""What is no file: ranges that ship, and the profiles of the run's devices."""
SWING = 0.3  # the part of a range in which a round's own draw moves a parameter


@dataclass(frozen=True)
class Resources:
    """Ranges (low, high) of the parameters of equations 13 to 16, in SI units; the budget in epochs."""

    cycles: tuple[float, float] = (5e5, 2e6)
    """Lambda: cycles of the computing unit per sample."""
    frequency: tuple[float, float] = (5e8, 1.5e9)
    """Gamma, in Hz."""
    capacitance: tuple[float, float] = (1e-28, 1e-28)
    """kappa: effective switched capacitance."""
    power_up: tuple[float, float] = (0.05, 0.2)
    """rho, in watts."""
    power_down: tuple[float, float] = (0.02, 0.05)
    bandwidth: tuple[float, float] = (2e5, 1e6)
    """Psi, in Hz, of either direction."""
    gain: tuple[float, float] = (1e-13, 1e-11)
    """phi: channel gain of either direction."""
    noise: tuple[float, float] = (4e-21, 4e-21)
    """Delta: power spectral density, in W/Hz."""
    budget: tuple[float, float] = (3.0, 15.0)
    """E_i(t), as epochs at the client's usual parameters."""


NAMES = tuple(item.name for item in fields(Resources))


def read(where: str) -> Resources:
    """``default``, or a TOML file with ranges such as ``budget = [2, 8]``; what it leaves out has its default.

    Of ``devices`` only the budget is read here.
    """
    if where in NAMED:
        return Resources()
    try:
        given = tomllib.loads(Path(where).read_text())
    except OSError as error:
        raise UsageError(
            f"resources file '{where}' cannot be read: {error.strerror}{nearest(where, NAMED)}"
        ) from error
    except ValueError as error:
        raise UsageError(f"resources file '{where}' is not valid TOML: {error}") from error
    for name, value in given.items():
        if name not in NAMES:
            raise UsageError(
                f"resources file '{where}': unknown parameter '{name}'{nearest(name, NAMES)}"
            )
        numbers = (
            isinstance(value, list)
            and len(value) == 2
            and all(isinstance(v, int | float) for v in value)
        )
        if not numbers or not 0 < value[0] <= value[1] < float("inf"):
            raise UsageError(
                f"resources file '{where}': {name} must be [low, high] with 0 < low <= high"
            )
    return Resources(**{name: (float(low), float(high)) for name, (low, high) in given.items()})


def check(where: str, decided: tuple[str, ...]) -> None:
    """Refuse a budget that cannot be read, or that nobody could keep."""
    if where:
        read(where)
        if "alpha" not in decided:
            raise UsageError(
                "an energy budget limits epochs: let the agents decide them (--adapt alpha,...)"
            )


def parameters(resources: Resources, usual: Tensor, today: Tensor) -> Params:
    """Each parameter from two uniform numbers: the client's own and the round's (0.5 is the usual day)."""
    place = (usual * (1 - SWING) + today * SWING).unbind(-1)
    ranges = (getattr(resources, name) for name in NAMES)
    return {
        name: low + (high - low) * u
        for name, (low, high), u in zip(NAMES, ranges, place, strict=True)
    }


def computing(p: Params, samples: Tensor) -> Tensor:
    """E_cmp of one epoch, equation (13): |D| kappa Lambda Gamma^2."""
    return samples * p["capacitance"] * p["cycles"] * p["frequency"] ** 2


def radio(p: Params, power: Tensor, bits: float) -> Tensor:
    """Equations (14) and (15): power times the time that Shannon's rate needs for the model."""
    rate = p["bandwidth"] * torch.log2(1 + p["gain"] * power / (p["noise"] * p["bandwidth"]))
    return power * bits / rate


def price(
    resources: Resources, usual: Tensor, today: Tensor, samples: Tensor, bits: float
) -> Params:
    """This round's energy an ``epoch``, its ``fixed`` part (radio), and the ``budget``."""
    now, normally = (
        parameters(resources, usual, today),
        parameters(resources, usual, torch.full_like(today, 0.5)),
    )
    costs = [
        (computing(p, samples), radio(p, p["power_up"], bits) + radio(p, p["power_down"], bits))
        for p in (now, normally)
    ]
    return {
        "epoch": costs[0][0],
        "fixed": costs[0][1],
        "budget": now["budget"] * costs[1][0] + costs[1][1],
    }


def device_price(device: DeviceProfile, budget: Tensor, samples: Tensor, bytes: float) -> Params:
    """The same by the profile of a device, whose speed, links and power are what the simulated clock bills."""
    epoch, fixed = (
        samples / device.samples_per_second * device.compute_watts,
        bytes
        * (device.upload_seconds_per_byte + device.download_seconds_per_byte)
        * device.radio_watts,
    )
    return {"epoch": epoch, "fixed": fixed, "budget": budget * epoch + fixed}


def excess(cost: Params, epochs: Tensor) -> Tensor:
    """b_i(t) of equation (16), as a part of the budget: above zero the constraint is broken."""
    return (epochs * cost["epoch"] + cost["fixed"] - cost["budget"]) / cost["budget"]


def multiplier(last: Tensor, excess: Tensor, rate: float) -> Tensor:
    """Equation (17): the gradient of the Lagrangian in lambda is -b, and lambda stays at or above zero."""
    return (last + rate * excess).clamp(min=0.0)


# --- a client under a budget ----------------------------------------------------------------------------------------


def client_init() -> State:
    zero = torch.zeros((), dtype=torch.float64)
    return {
        "usual": torch.zeros(len(NAMES), dtype=torch.float64),
        "multiplier": zero,
        "cost": {"epoch": zero, "fixed": zero, "budget": zero},
    }


def forecast(client: Client, resources: Resources, held: State, by_device: bool = False) -> State:
    """This round's prices, which a client knows before it decides; in its first round it draws who it is.

    ``by_device``: by the profile of its device, and the budget of ``resources`` alone.
    """
    count = len(NAMES)
    first = (held["usual"] == 0).all()
    usual = torch.where(first, client.uniform(count, stream=rng.ENERGY[0]), held["usual"])
    samples = (
        client.num_steps(LocalHParams(torch.ones_like(client.hparams.epochs), client.hparams.lr))
        * client.training.batch_size
    )  # to whole batches
    today, size = client.uniform(count, stream=rng.ENERGY[1]), float(tree_bytes(client.start))
    if by_device:
        cost = device_price(
            client.device(), parameters(resources, usual, today)["budget"], samples, size
        )
    else:
        cost = price(resources, usual, today, samples, 8 * size)
    return {**held, "usual": usual, "cost": cost}


def affordable(held: State) -> Tensor:
    """Epochs that the budget allows this round."""
    cost: Params = held["cost"]
    return (cost["budget"] - cost["fixed"]) / cost["epoch"]


def bill(client: Client, held: State, rate: float) -> tuple[Tensor, State]:
    """lambda_i b_i, to be taken from the reward, and the next multiplier. The log shows them with the energy."""
    over = excess(held["cost"], client.hparams.epochs)
    spent = client.hparams.epochs * held["cost"]["epoch"] + held["cost"]["fixed"]
    client.logged |= {"joules": spent, "excess": over, "multiplier": held["multiplier"]}
    return held["multiplier"] * over, {
        **held,
        "multiplier": multiplier(held["multiplier"], over, rate),
    }
