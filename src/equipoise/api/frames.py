"""Data frames in and out: predictions come back in the kind of frame that went in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.utils.errors import UsageError, install_hint

Predictions: TypeAlias = Any
"""A NumPy array; a series or data frame of the same library if the rows were a data frame."""
PREDICTED = "predicted"
"""Name of a series of predictions."""


def is_frame(rows: object) -> bool:
    """Whether rows are a data frame or table of some library: pandas, polars, pyarrow and so on."""
    if isinstance(rows, np.ndarray):
        return False
    has_columns = hasattr(rows, "columns") or hasattr(rows, "column_names")
    return has_columns and hasattr(rows, "shape")


def in_kind_of(
    rows: object, values: NDArray[Any], columns: Sequence[object] = (), kind: str = ""
) -> Predictions:
    """Return predictions in the kind of data frame that the rows have, with their index.

    Args:
        rows: Rows that were predicted: a data frame, or anything else.
        values: Predictions `[rows]`, or one column for each class `[rows, classes]`.
        columns: The classes, if there are several columns.
        kind: Library to use instead of that of the rows, such as `pandas`.

    Returns:
        A series, or a data frame if there are several columns. The array itself if the rows are no
        data frame and no kind is given.

    Raises:
        UsageError: If narwhals is not installed.
    """
    if not kind and not is_frame(rows):
        return values
    nw = _narwhals()
    index = None
    backend: Any = kind
    if is_frame(rows):
        frame = nw.from_native(rows, eager_only=True)
        index = nw.maybe_get_index(frame)
        backend = kind or frame.implementation
    if values.ndim == 1:
        predictions = nw.new_series(PREDICTED, values, backend=backend).to_native()
    else:
        named = {str(name): values[:, place] for place, name in enumerate(columns)}
        predictions = nw.from_dict(named, backend=backend).to_native()
        if hasattr(predictions, "iloc"):
            predictions.columns = list(columns)  # pandas takes classes of any type, others texts
    if index is not None and hasattr(predictions, "index"):
        predictions.index = index
    return predictions


def _narwhals() -> Any:
    """Import narwhals, or say how to install it."""
    try:
        import narwhals
    except ImportError as error:
        raise UsageError(f"data frames need narwhals: {install_hint('data')}") from error
    return narwhals
