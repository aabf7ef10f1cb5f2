import os

import pytest
import torch

from helpers_browser import browser  # noqa: F401  # a fixture

os.environ["OMP_NUM_THREADS"] = "1"  # of commands that tests start: two tests run at a time


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small models are faster on one thread, and other work on the machine
    cannot make tests crawl.
    """
    torch.set_num_threads(1)
