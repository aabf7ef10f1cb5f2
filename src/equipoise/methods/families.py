"""Methods by family: what kind of answer each gives to clients that differ. docs/which-method.md says more."""

from __future__ import annotations

from enum import Enum

from equipoise.core import Method
from equipoise.methods import all_methods


class Family(Enum):
    """A family, with its title and when to choose it; a method names its own as ``family``."""

    ONE_MODEL = (
        "one-model",
        "One model for all",
        "when clients want the same and the provider needs one model",
    )
    PARTS = (
        "parts",
        "Personal parts",
        "when clients agree on features but not on answers; fewer bytes",
    )
    SECOND = (
        "second-model",
        "A second model per client",
        "when clients differ much and each can afford more training",
    )
    CONTROLLER = (
        "controller",
        "Controllers",
        "when rates, epochs and weights should be chosen for you, round by round",
    )
    REDISTRIBUTION = (
        "redistribution",
        "Redistribution",
        "when the server should choose what each client gets back",
    )
    AGENTS = "agents", "Agents", "when clients act in environments instead of holding data"
    OTHER = "", "Others", "methods that name no family"

    def __init__(self, key: str, title: str, advice: str) -> None:
        self.key, self.title, self.advice = key, title, advice


def by_family() -> dict[Family, dict[str, type[Method]]]:
    """Every method that ships, by family, in the order of the families; families without methods are left out."""
    methods = all_methods()
    found = {
        family: {name: method for name, method in methods.items() if method.family == family.key}
        for family in Family
    }
    return {family: members for family, members in found.items() if members}
