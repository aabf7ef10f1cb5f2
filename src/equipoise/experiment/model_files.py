"""Read the parameters of a run's models."""

from __future__ import annotations

import json

from equipoise.core import Params
from equipoise.records.run_dir import RunFolder
from equipoise.utils.errors import UsageError


def read_model(folder: RunFolder, client: int | None, is_local: bool = False) -> Params:
    """Read one model of a finished run, without building its task.

    Args:
        folder: Folder of the run.
        client: Client of a personal model; None for the global model.
        is_local: Whether to read the model that the client trained alone, as a baseline.

    Returns:
        All parameters, the frozen ones included.

    Raises:
        UsageError: If the run has no such model.
    """
    name = "global" if client is None else "personal"
    file = folder.model(name)
    if client is not None:
        refuse_remote_model(folder, client)
    if not file.exists():
        reasons = {
            "global": "its method has no whole global model: try --client",
            "personal": "kept no personal models (--no-save-personal)",
        }
        raise UsageError(f"'{file}' does not exist: the run is not finished, or {reasons[name]}")
    tensors = folder.baselines.read_tensors() if is_local else file.read_tensors()
    if is_local:
        prefix = "local."
        local = {name.removeprefix(prefix): v for name, v in tensors.items() if prefix in name}
        tensors = {"client_ids": tensors["client_ids"], **local}
    base = folder.model("frozen")
    frozen = base.read_tensors() if base.exists() else {}
    if client is None:
        return {**frozen, **tensors}
    ids = tensors.pop("client_ids").tolist()
    if client not in ids:
        raise UsageError(
            f"client {client} has no personal model in '{file}': it has {min(ids)} to {max(ids)}"
        )
    row = ids.index(client)
    return {**frozen, **{key: value[row].clone() for key, value in tensors.items()}}


def refuse_remote_model(folder: RunFolder, client: int) -> None:
    """Say where a personal model is, if the clients of the run keep theirs.

    Args:
        folder: Folder of the run.
        client: Number of the client.

    Raises:
        UsageError: If this is the server's folder of a deployment.
    """
    if not folder.flower.exists() or folder.model("personal").exists():
        return
    run = json.loads(folder.flower.read_text()).get("run", "RUN")
    raise UsageError(
        f"the personal model of client {client} is on its own machine, in "
        f"'<state-dir>/{run}/client-{client}': predict there, or here with the global model"
    )
