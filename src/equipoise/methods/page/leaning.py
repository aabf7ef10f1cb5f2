"""Bias of PAGE's game to one side (table 4), in powers of ten: above zero to the server's, below to the clients'.

The paper scales rewards, which a learner that standardises them cannot see. Here the named side gets what serves it:
weights that lean to where the global model errs, or a last touch of the personal models.
"""

from __future__ import annotations

import math

import torch

from equipoise.contract import Client, Method, LocalHParams, Params
from equipoise.core.errors import UsageError

POLISH = 5  # epochs of a client's last touch at a tenth of its rate, for each power of ten of bias to its side


def lean(bias: str) -> float:
    server, _, clients = bias.partition(":")
    return math.log10(float(server) / float(clients))


def check(bias: str, decided: tuple[str, ...], below: Method, scales_rewards: bool) -> None:
    """Refuse what is no ratio, and a side that has nothing to lean with; scaled rewards lean with nothing else."""
    try:
        power = lean(bias)
    except (ValueError, ZeroDivisionError):
        power = math.inf
    if not abs(power) <= 2:
        raise UsageError(f"bias is '{bias}': must be a ratio like 10:1, from 1:100 to 100:1")
    if power > 0 and "p" not in decided and not scales_rewards:
        raise UsageError(f"bias {bias} acts through the weights: let the server decide them (--adapt ...,p)")
    if power < 0 and "personal_model" in below.overridden_hooks and not scales_rewards:
        raise UsageError(
            f"bias {bias} gives clients a last touch of their models, but '{below.name}' makes personal models "
            "itself: choose another --base"
        )


def last_touch(client: Client, power: float) -> Params:
    """A few epochs more at a tenth of the rate, which the upload does not contain."""
    epochs = torch.full_like(client.hparams.epochs, math.ceil(-power * POLISH))
    return client.fit(client.trained, hparams=LocalHParams(epochs, client.hparams.lr / 10), stream=1)
