"""Any method whose clients tell the training loss of the model that they receive, for policies of decision 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from equipoise.contract import Around, Client, Method, Range, Selection, State, Up
from equipoise.contract.ranges import LOSS
from equipoise.runtime.selecting import TOLD


def telling(method: Method, selection: Selection) -> Method:
    """The method with clients that tell what the policy asks for; itself where it asks for nothing."""
    return Telling(method) if selection.told else method


@dataclass(frozen=True)
class Telling(Around):
    """One number more in each upload: it is billed, and it must lie in its range."""

    @property
    def reports(self) -> Mapping[str, Range]:  # type: ignore[override]
        return {**super().reports, TOLD: LOSS}

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        return replace(up, metrics={**up.metrics, TOLD: c.evaluate(c.start, "train")["loss"]}), state
