"""Where a figure comes from: commit, versions, machine; and the files of measurements that are not
grids.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from equipoise import __version__

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@cache
def provenance() -> dict[str, Any]:
    """Commit, whether anything but results was changed since, versions and machine; read once per
    process.
    """
    changed = _git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if changed is None else bool(changed),
        "versions": {
            "python": platform.python_version(),
            "equipoise": __version__,
            **_versions("torch", "numpy"),
        },
        "machine": {"cores": os.cpu_count(), "cpu": _cpu()},
    }


def measured(name: str, result: dict[str, Any]) -> None:
    """Write ``results/NAME.json``, a measurement with its command, provenance and the load beside
    it, and print it.
    """
    module = getattr(sys.modules["__main__"], "__spec__", None)
    command = ["python", *(["-m", module.name] if module else sys.argv[:1]), *sys.argv[1:]]
    about = {
        "command": " ".join(command),
        **provenance(),
        "load": [round(x, 1) for x in os.getloadavg()],
    }
    text = json.dumps({**about, **result}, indent=1) + "\n"
    (RESULTS / f"{name}.json").write_text(text)
    print(text, end="")


def _git(*arguments: str) -> str | None:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
