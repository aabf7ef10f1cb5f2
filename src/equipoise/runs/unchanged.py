"""What a run begins with and must find again when it goes on: its data, and its table of devices."""

from __future__ import annotations

from pathlib import Path

from equipoise.clock.devices import DEVICE_POPULATIONS, read
from equipoise.contract import Task
from equipoise.core.errors import UsageError
from equipoise.core.files import write_text
from equipoise.records.folder import Folder
from equipoise.settings.config import RunSettings


def keep(folder: Folder, settings: RunSettings, task: Task) -> None:
    """Write them down, before the config says that a run is here."""
    devices = settings.timing.devices
    table = "" if devices in DEVICE_POPULATIONS else Path(devices).read_text(encoding="utf-8-sig")
    before = {folder.preparation: task.preprocessing_json(), folder.fingerprint: task.fingerprint(), folder.devices: table}
    for file, text in before.items():
        if text:
            write_text(file, text)


def demand_unchanged(folder: Folder, settings: RunSettings, task: Task) -> None:
    """Refuse to go on with other data or other devices."""
    if folder.fingerprint.exists() and folder.fingerprint.read_text() != task.fingerprint():
        raise UsageError(
            f"the data have changed since the run in '{folder.path}' began: restore them, or begin a new run"
        )
    if folder.devices.exists() and read(str(folder.devices)) != settings.timing.device_classes:
        raise UsageError(
            f"the devices in '{settings.timing.devices}' have changed since the run in '{folder.path}' began: restore "
            f"them from '{folder.devices}', or begin a new run"
        )
