"""Types of the arrays of gradient boosting."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Places = NDArray[np.int16]
Units = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Targets = NDArray[Any]
"""Targets as a federation holds them: classes `[n]`, numbers `[n]`, or time and event `[n, 2]`."""

CATEGORY_BITS = 32
"""Bits of a word of `categories`: a word is exact in any float64."""

QUANTUM = 2.0**-20
"""Gradients and hessians are multiples of it: sums of 2^33 / 64 rows are exact in float64."""
MAX_GRADIENT = 64.0
"""Largest absolute gradient and hessian of a row. In standard deviations of a regression."""
