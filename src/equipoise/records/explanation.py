"""Which inputs matter to a model, and how: importance and partial dependence, by site."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Importance:
    """By how much a score falls when a column is permuted, as in scikit-learn."""

    column: str
    importances_mean: float
    """Mean over the repeats."""
    importances_std: float
    """Standard deviation over the repeats."""


@dataclass(frozen=True, kw_only=True)
class SiteExplanation:
    """What the model of one site says about the rows of this site."""

    site: str
    rows: int | None = None
    """Rows that were used; None where they are too few to be told."""
    model: str = ""
    """Kind of model that the site uses."""
    score: float | None = None
    """Score without any permutation; None where it is hidden or undefined."""
    importances: list[Importance] = field(default_factory=list)
    """In the order of the columns; empty where they are hidden or undefined."""


@dataclass(frozen=True, kw_only=True)
class PartialDependence:
    """Mean prediction if every row had the same value in one column."""

    column: str
    kind: str
    """``number``, ``category`` or ``date``."""
    grid_values: list[float] | list[str]
    """Values of the column; dates are days since 1970."""
    average: list[list[float]]
    """Mean prediction over all rows: one list for each output, with one number for each value."""
    sites: dict[str, list[list[float]]] = field(default_factory=dict)
    """The same over the rows of each site; sites with few rows are left out."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Which inputs matter, overall and at each site.

    Sites send sums alone: rows times score drops, rows in cells of values, and sums of predictions.
    """

    title: str
    metric: str
    outputs: list[str]
    """What is predicted, in words; one for each output."""
    rows: int
    """Rows of all sites that were used."""
    n_repeats: int
    min_count: int
    """Sites with fewer rows are not shown; they count in the figures of all rows."""
    score: float | None = None
    """Score without any permutation: mean over sites, every row alike."""
    importances: list[Importance]
    """Mean over sites in which every row counts alike, the most important column first."""
    partial_dependence: list[PartialDependence] = field(default_factory=list)
    sites: list[SiteExplanation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the columns with their importance, one per line."""
        lines = [
            f"{one.column}: {one.importances_mean:.4g} ± {one.importances_std:.2g}"
            for one in self.importances
        ]
        return "\n".join([f"{self.title}: drop of {self.metric} if permuted", *lines, *self.notes])
