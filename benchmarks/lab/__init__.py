"""The laboratory: declare a study, run its grid, keep every cell with its provenance, write its
page.
"""

from benchmarks.lab.cells import Cell, Record, Results, grid
from benchmarks.lab.study import Study

__all__ = ["Cell", "Record", "Results", "Study", "grid"]
