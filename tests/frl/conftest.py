import numba
import pytest


@pytest.fixture(autouse=True)
def _one_kernel_thread() -> None:
    """Two threads crawl when the other core is busy; the test of threads sets its own."""
    numba.set_num_threads(1)
