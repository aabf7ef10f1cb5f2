"""Families of methods: how each deals with clients that differ.

See docs/which-method.md for the choice among them.
"""

from __future__ import annotations

from enum import Enum

from equipoise.core import Method
from equipoise.methods import all_methods


class Family(Enum):
    """A family with its key (`Method.family`), its title, and when to choose it."""

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
        """Create a family with its title and its advice.

        Args:
            key: Name in code.
            title: Title for people.
            advice: When to choose a method of the family.
        """
        self.key = key
        self.title = title
        self.advice = advice


def by_family() -> dict[Family, dict[str, type[Method]]]:
    """Group the methods of the package.

    Returns:
        For every family that has methods, in the order of the families: its methods by name.
    """
    families: dict[Family, dict[str, type[Method]]] = {}
    for family in Family:
        members = {
            name: method for name, method in all_methods().items() if method.family == family.key
        }
        if members:
            families[family] = members
    return families
