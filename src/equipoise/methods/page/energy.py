"""Energy of a client's round (PAGE, appendix D) and the Lagrangian price that it puts on epochs.

Every parameter of the energy model varies: a client has its own position in the parameter's range,
and every round moves it within `ROUND_VARIATION` of the range. The budget E_i(t) is stated in
epochs: the energy of this many epochs at the client's usual parameters, radio included.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from equipoise.core import Client, DeviceProfile, LocalHParams, Params
from equipoise.utils import rng
from equipoise.utils.errors import UsageError, did_you_mean
from equipoise.utils.pytree import tree_bytes

DEVICES = "devices"
"""The value of option `energy_budget` that takes energies from the run's device profiles."""
NAMED_BUDGETS = ("default", DEVICES)
"""Values of option `energy_budget` that are no file."""
ROUND_VARIATION = 0.3
"""The part of a parameter's range that the round decides; the client decides the rest."""


@dataclass(frozen=True)
class EnergyRanges:
    """Ranges (low, high) of the parameters of equations 13 to 16, in SI units."""

    cycles: tuple[float, float] = (5e5, 2e6)
    """Lambda: cycles of the computation unit per sample."""
    frequency: tuple[float, float] = (5e8, 1.5e9)
    """Gamma: frequency of the computation unit, in Hz."""
    capacitance: tuple[float, float] = (1e-28, 1e-28)
    """kappa: effective switched capacitance."""
    power_up: tuple[float, float] = (0.05, 0.2)
    """rho: transmission power of the uplink, in watts."""
    power_down: tuple[float, float] = (0.02, 0.05)
    """rho': the same of the downlink."""
    bandwidth: tuple[float, float] = (2e5, 1e6)
    """Psi: bandwidth in Hz, of either direction."""
    gain: tuple[float, float] = (1e-13, 1e-11)
    """phi: channel gain of either direction."""
    noise: tuple[float, float] = (4e-21, 4e-21)
    """Delta: power spectral density of noise, in W/Hz."""
    budget: tuple[float, float] = (3.0, 15.0)
    """E_i(t), in epochs at the client's usual parameters."""


PARAMETERS = tuple(item.name for item in fields(EnergyRanges))


class RoundEnergy(TypedDict):
    """Energies of one client in one round, in joules."""

    epoch: Tensor
    """E_cmp of one epoch, equation (13)."""
    fixed: Tensor
    """E_com + E_com', the radio, equations (14) and (15)."""
    budget: Tensor
    """E_i(t)."""


class EnergyState(TypedDict):
    """A client's state under an energy budget."""

    position: Tensor
    """The client's own position in each parameter's range `[9]`, in [0, 1)."""
    multiplier: Tensor
    """lambda_i(t)."""
    cost: RoundEnergy
    """Energies of the current round."""


# ------------------------------------------------------------------------------------ option values


def read_ranges(source: str) -> EnergyRanges:
    """Read the parameters' ranges.

    Args:
        source: `default`, `devices` (of whose ranges only the budget is used), or the path of a
            TOML file with lines like `budget = [2, 8]`; what it leaves out has its default.

    Returns:
        The ranges.

    Raises:
        UsageError: If the file cannot be read, or names unknown parameters or invalid ranges.
    """
    if source in NAMED_BUDGETS:
        return EnergyRanges()
    try:
        entries = tomllib.loads(Path(source).read_text())
    except OSError as error:
        raise UsageError(
            f"energy budget file '{source}' cannot be read: {error.strerror}"
            f"{did_you_mean(source, NAMED_BUDGETS)}"
        ) from error
    except ValueError as error:
        raise UsageError(f"energy budget file '{source}' is not valid TOML: {error}") from error
    for name, value in entries.items():
        if name not in PARAMETERS:
            raise UsageError(
                f"energy budget file '{source}': unknown parameter '{name}'"
                f"{did_you_mean(name, PARAMETERS)}"
            )
        if not _is_range(value):
            raise UsageError(
                f"energy budget file '{source}': {name} must be [low, high] with 0 < low <= high"
            )
    return EnergyRanges(
        **{name: (float(low), float(high)) for name, (low, high) in entries.items()}
    )


def _is_range(value: object) -> bool:
    """Return whether a TOML value is [low, high] with 0 < low <= high < inf."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    if not all(isinstance(number, int | float) for number in value):
        return False
    return bool(0 < value[0] <= value[1] < float("inf"))


def check(source: str, client_actions: tuple[str, ...]) -> None:
    """Refuse a budget that cannot be read, or that no agent can keep.

    Args:
        source: Option `energy_budget`; empty for none.
        client_actions: The factors that the clients' agents decide.

    Raises:
        UsageError: With the reason.
    """
    if not source:
        return
    read_ranges(source)
    if "alpha" not in client_actions:
        raise UsageError(
            "an energy budget limits epochs: let the agents decide them (--controls alpha,...)"
        )


# --------------------------------------------------------------------------------- the energy model


def parameters(ranges: EnergyRanges, position: Tensor, round_draw: Tensor) -> Params:
    """Return each parameter of a client in a round.

    Args:
        ranges: The parameters' ranges.
        position: Uniform numbers of the client `[..., 9]`.
        round_draw: Uniform numbers of the round `[..., 9]`; 0.5 gives the usual parameters.

    Returns:
        Values by name.
    """
    place = (position * (1 - ROUND_VARIATION) + round_draw * ROUND_VARIATION).unbind(-1)
    values: Params = {}
    for name, u in zip(PARAMETERS, place, strict=True):
        low, high = getattr(ranges, name)
        values[name] = low + (high - low) * u
    return values


def computation_energy(p: Params, samples: Tensor) -> Tensor:
    """Return E_cmp of one epoch, equation (13): |D| kappa Lambda Gamma^2."""
    return samples * p["capacitance"] * p["cycles"] * p["frequency"] ** 2


def radio_energy(p: Params, power: Tensor, bits: float) -> Tensor:
    """Return E_com, equations (14) and (15): power times the time at Shannon's rate.

    Args:
        p: The channel: bandwidth, gain and noise.
        power: Transmit power in watts.
        bits: Size of the message.
    """
    rate = p["bandwidth"] * torch.log2(1 + p["gain"] * power / (p["noise"] * p["bandwidth"]))
    return power * bits / rate


def round_energy(
    ranges: EnergyRanges, position: Tensor, round_draw: Tensor, samples: Tensor, bits: float
) -> RoundEnergy:
    """Return a client's energies of one round.

    Args:
        ranges: The parameters' ranges.
        position: Uniform numbers of the client `[..., 9]`.
        round_draw: Uniform numbers of the round `[..., 9]`.
        samples: Training samples of one epoch.
        bits: Size of the model (the paper's Upsilon).

    Returns:
        The energies.
    """
    current = parameters(ranges, position, round_draw)
    usual = parameters(ranges, position, torch.full_like(round_draw, 0.5))
    epoch = computation_energy(current, samples)
    usual_epoch = computation_energy(usual, samples)
    fixed = _both_ways(current, bits)
    usual_fixed = _both_ways(usual, bits)
    budget = current["budget"] * usual_epoch + usual_fixed
    return {"epoch": epoch, "fixed": fixed, "budget": budget}


def _both_ways(p: Params, bits: float) -> Tensor:
    """Return the energy of upload and download."""
    return radio_energy(p, p["power_up"], bits) + radio_energy(p, p["power_down"], bits)


def device_energy(
    device: DeviceProfile, budget: Tensor, samples: Tensor, num_bytes: float
) -> RoundEnergy:
    """Return a client's energies by its device profile, as the simulated clock counts them.

    Args:
        device: Speed, links and power of the device.
        budget: The budget in epochs.
        samples: Training samples of one epoch.
        num_bytes: Size of the model.

    Returns:
        The energies.
    """
    epoch = samples / device.samples_per_second * device.compute_watts
    seconds_per_byte = device.upload_seconds_per_byte + device.download_seconds_per_byte
    fixed = num_bytes * seconds_per_byte * device.radio_watts
    return {"epoch": epoch, "fixed": fixed, "budget": budget * epoch + fixed}


def excess(cost: RoundEnergy, epochs: Tensor) -> Tensor:
    """Return b_i(t) of equation (16) relative to the budget; above 0 the constraint is violated."""
    return (epochs * cost["epoch"] + cost["fixed"] - cost["budget"]) / cost["budget"]


def affordable_epochs(cost: RoundEnergy) -> Tensor:
    """Return the number of epochs that the budget allows."""
    return (cost["budget"] - cost["fixed"]) / cost["epoch"]


def next_multiplier(multiplier: Tensor, excess: Tensor, dual_lr: float) -> Tensor:
    """Return lambda_i(t+1), equation (17): the gradient in lambda is -b, and lambda >= 0.

    Args:
        multiplier: The multiplier lambda_i(t).
        excess: The relative excess b_i over the budget.
        dual_lr: Learning rate of the multiplier.
    """
    return (multiplier + dual_lr * excess).clamp(min=0.0)


# -------------------------------------------------------------------------- a client under a budget


def init_state() -> EnergyState:
    """Return the state of a client before its first round."""
    zero = torch.zeros((), dtype=torch.float64)
    return {
        "position": torch.zeros(len(PARAMETERS), dtype=torch.float64),
        "multiplier": zero,
        "cost": {"epoch": zero, "fixed": zero, "budget": zero},
    }


def begin_round(
    client: Client, ranges: EnergyRanges, state: EnergyState, by_device: bool
) -> EnergyState:
    """Compute this round's energies, which a client knows before it decides.

    Args:
        client: The client. In its first round it draws its position in the ranges.
        ranges: The parameters' ranges.
        state: The client's energy state.
        by_device: Take energies from the client's device, and only the budget from `ranges`.

    Returns:
        The state with the energies of this round.
    """
    count = len(PARAMETERS)
    is_first = (state["position"] == 0).all()
    own_draw = client.uniform(count, stream=rng.ENERGY[0])
    position = torch.where(is_first, own_draw, state["position"])
    round_draw = client.uniform(count, stream=rng.ENERGY[1])
    one_epoch = LocalHParams(torch.ones_like(client.hparams.epochs), client.hparams.lr)
    samples = client.num_steps(one_epoch) * client.training.batch_size  # rounded up to batches
    num_bytes = float(tree_bytes(client.start))
    if by_device:
        budget = parameters(ranges, position, round_draw)["budget"]
        cost = device_energy(client.device(), budget, samples, num_bytes)
    else:
        cost = round_energy(ranges, position, round_draw, samples, 8 * num_bytes)
    return {**state, "position": position, "cost": cost}


def penalise(client: Client, state: EnergyState, dual_lr: float) -> tuple[Tensor, EnergyState]:
    """Return lambda_i b_i, to be subtracted from the reward, and the state with the next lambda_i.

    The log shows the energy, the relative excess and the multiplier of every client.

    Args:
        client: The client after training.
        state: Its energy state.
        dual_lr: Learning rate of the multiplier.
    """
    cost = state["cost"]
    relative_excess = excess(cost, client.hparams.epochs)
    joules = client.hparams.epochs * cost["epoch"] + cost["fixed"]
    multiplier = state["multiplier"]
    client.logged |= {"joules": joules, "excess": relative_excess, "multiplier": multiplier}
    new_multiplier = next_multiplier(multiplier, relative_excess, dual_lr)
    return multiplier * relative_excess, {**state, "multiplier": new_multiplier}
