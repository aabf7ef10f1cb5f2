"""Play an episode with an agent of a finished run, and optionally film it."""

from __future__ import annotations

from pathlib import Path

from equipoise.environments import render
from equipoise.environments.deep_task import DeepRLTask
from equipoise.experiment.build import build_task
from equipoise.experiment.model_files import read_model
from equipoise.records.run_dir import RunFolder
from equipoise.settings.loading import settings_in
from equipoise.utils.errors import UsageError


def play(path: Path, agent: int, episode: int, video: Path | None) -> float:
    """Play one of an agent's test episodes with its personal network.

    Args:
        path: The run folder.
        agent: The agent's id.
        episode: Number of the episode, from 0.
        video: Where to write a video (.gif or .mp4), or None.

    Returns:
        The episode's return.

    Raises:
        UsageError: If the run has no such agent, or is not finished.
    """
    if episode < 0:
        raise UsageError(f"episode is {episode}: must be at least 0")
    if video is not None:
        render.check_video_path(video)
    folder = RunFolder(path)
    folder.demand()
    task = build_task(settings_in(folder.read_config()))
    if not isinstance(task, DeepRLTask):
        raise UsageError(
            f"'{path}' is a run of task '{task.info.name}', which has no deep agents: nothing "
            "to play"
        )
    model = read_model(folder, agent)
    total, frames, fps = render.run_episode(task, agent, model, episode, video is not None)
    if video is not None:
        render.write_video(frames, video, fps)
    return total
