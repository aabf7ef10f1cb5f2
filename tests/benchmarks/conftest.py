import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Studies tell the processes that they spawn to use one thread; tests
    after them may have more.
    """
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
