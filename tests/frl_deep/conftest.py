import pytest

pytest.importorskip(
    "gymnasium",
    reason="environments are compared with Gymnasium's own: pip install 'equipoise[rl]'",
)
