"""What an agent of a finished run does: an episode of its net, told or filmed."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from equipoise.environments import render
from equipoise.environments.deep_task import AgentTask
from equipoise.experiment.runner import build_task
from equipoise.records.run_dir import Folder
from equipoise.settings.loading import settings_in
from equipoise.utils.errors import UsageError


def play(path: Path, agent: int, episode: int, video: Path | None) -> float:
    """The return of one of the agent's scored episodes, under its personal net; with ``video`` it is also filmed."""
    if episode < 0:
        raise UsageError(f"episode is {episode}: must be at least 0")
    if video is not None:
        render.check_file(video)
    folder = Folder(path)
    folder.demand()
    task = build_task(settings_in(folder.config))
    if not isinstance(task, AgentTask):
        raise UsageError(
            f"'{path}' is a run of task '{task.name}', which has no deep agents: nothing to play"
        )
    file = folder.models / "personal.safetensors"
    if not file.is_file():
        raise UsageError(
            f"'{file}' is not there: the run is not finished, or was made with save_personal off"
        )
    models = load_file(file)
    known = models.pop("client_ids").tolist()
    if agent not in known:
        raise UsageError(f"agent is {agent}: the run has the agents {known[0]} to {known[-1]}")
    one = {name: value[known.index(agent)] for name, value in models.items()}
    total, pictures, rate = render.episode(task, agent, one, episode, video is not None)
    if video is not None:
        render.write(pictures, video, rate)
    return total
