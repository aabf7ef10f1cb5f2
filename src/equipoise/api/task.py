"""Tasks as Python values: shipped tasks by name, and tasks on data of the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.api.errors import speaks_python
from equipoise.core import TrainingConfig
from equipoise.data.federated_dataset import InputTransform, Ints
from equipoise.data.splits import UserRowShares
from equipoise.data.tabular.config import format_names
from equipoise.tasks import TaskSpec, find_task, in_memory
from equipoise.tasks.in_memory import DatasetRows, Model
from equipoise.tasks.rl_deep import env_kwargs_text, environment_spec
from equipoise.tasks.tables import TableLearningConfig
from equipoise.utils.errors import UsageError, did_you_mean


@speaks_python
@dataclass(frozen=True)
class Task:
    """A task: data, model and options.

    Create one with :meth:`named`, :meth:`from_tables`, :meth:`from_datasets`, :meth:`from_texts`,
    :meth:`from_environment` or :meth:`from_folder`.
    """

    spec: TaskSpec = field(repr=False)
    options: Mapping[str, object] = field(default_factory=dict)
    data: DatasetRows | None = field(default=None, repr=False, compare=False)
    """Samples of :meth:`from_datasets`."""

    def __post_init__(self) -> None:
        """Refuse options that the task does not have.

        Raises:
            UsageError: If an option is unknown.
        """
        known = [item.name for item in dataclasses.fields(self.spec.config)]
        for name in self.options:
            if name not in known:
                raise UsageError(
                    f"task '{self.spec.name}' has no option '{name}'{did_you_mean(name, known)}"
                )

    @property
    def name(self) -> str:
        """Name of the task in the results."""
        return self.spec.name

    @classmethod
    def from_name(cls, name: str, **options: object) -> Task:
        """Return a shipped task with options: ``Task.from_name("synthetic", clients=50)``."""
        return cls(find_task(name), options)

    @classmethod
    def from_tables(
        cls,
        tables: object,
        *,
        target: str,
        client_column: str = "",
        target_type: str = "",
        ignore: Sequence[str] = (),
        name: str = "tables",
        **options: object,
    ) -> Task:
        """Create a task from tables in memory.

        Args:
            tables: Table of each client by name, or one table with a column of clients: of
                pandas, polars, Arrow or whatever narwhals reads, or columns by name. The table
                named ``server`` holds the server's rows.
            target: Column to predict.
            client_column: Column that names the client, where all rows are in one table.
            target_type: classification, regression or survival; classification by default.
            ignore: Columns to leave out.
            name: Name of the task in the results.
            options: Options of the task ``tables``: shares of the splits, ``event``,
                ``small_clients`` and others.

        Returns:
            The task.
        """
        given: dict[str, Any] = {
            "target": target,
            "target_type": target_type,
            "ignore_columns": format_names(ignore),
            **options,
        }
        known = {item.name for item in dataclasses.fields(TableLearningConfig)}
        config = TableLearningConfig(**{key: value for key, value in given.items() if key in known})
        return cls(in_memory.from_tables(tables, name, config, client_column), given)

    @classmethod
    def from_datasets(
        cls,
        clients: Mapping[str, object] | Iterable[object],
        *,
        model: Model,
        fresh: bool = False,
        adapter: str = "",
        blocks: str = "",
        server: object = None,
        classes: int | None = None,
        form: InputTransform | None = None,
        training: TrainingConfig | None = None,
        name: str = "datasets",
        **options: object,
    ) -> Task:
        """Create a task from arrays, tensors or torch data sets, with any model.

        Args:
            clients: For each client, or client's name, a pair ``(x, y)`` of arrays or tensors, a
                torch data set of such pairs, or a Hugging Face data set of two columns. With splits
                of your own: ``(train, test)`` or ``(train, val, test)`` of these. Bytes ``[H, W,
                C]`` are images, other integers are tokens; labels are classes 0, 1, ... or, as
                floats, numbers to predict.
            model: A module, whose weights are the initial ones; a function
                ``(shape, classes) -> module``, called under the seed of the run; or the name of a
                shipped model.
            fresh: Whether the seed of the run initialises the layers of the module again.
            adapter: Freeze the model and train low-rank adapters, as
                ``"rank=8 targets=*.query,*.value"``; see :class:`equipoise.models.lora.Adapter`.
            blocks: Blocks of the model by patterns of parameter names, as
                ``"base=features.* head=classifier.*"``; by default those that the module declares
                (``module.blocks``), or the last layer and the others.
            server: Samples of the server; without them, a share of every client's is used.
            classes: Number of classes, if the labels do not show it.
            form: How stored samples become inputs, such as
                ``equipoise.data.transforms.Pixels(mean, std)``.
            training: Defaults of local training.
            name: Name of the task in the results.
            options: Shares of the splits and others.

        Returns:
            The task.
        """
        data = in_memory.read_datasets(clients, name, server=server, classes=classes, form=form)
        spec = in_memory.from_datasets(
            data,
            model,
            name,
            fresh=fresh,
            adapter=adapter,
            blocks=blocks,
            training=training,
        )
        return cls(spec, options, data)

    def row_splits(self, seed: int = 0) -> dict[str, dict[str, Ints]]:
        """Return which samples of :meth:`from_datasets` each client uses for what.

        Args:
            seed: Seed of the run.

        Returns:
            By client, the numbers of its samples in the order given, by split: ``train``, ``val``,
            ``test``, and ``server`` for those that the server took.

        Raises:
            UsageError: If the task was not made by :meth:`from_datasets`.
        """
        if self.data is None:
            raise UsageError(
                f"task '{self.name}' was not made by Task.from_datasets: it has no rows"
            )
        return self.data.row_splits(UserRowShares(**self.options), seed)  # type: ignore[arg-type]

    @classmethod
    def from_texts(
        cls,
        data: object,
        *,
        pretrained: str | Path,
        adapter: str = "",
        blocks: str = "",
        training: TrainingConfig | None = None,
        name: str = "texts",
        **options: object,
    ) -> Task:
        """Create a task from texts, with a pretrained model of ``transformers`` (extra ``text``).

        Args:
            data: A data set of Hugging Face's ``datasets``, or a pandas or Arrow table, with a
                column that names the client; or a table of each client by name, of which
                ``server`` is the server's.
            pretrained: Folder of a model with its tokenizer, or its name on the hub.
            adapter: As for :meth:`from_datasets`, with patterns such as ``*.query``.
            blocks: As for :meth:`from_datasets`.
            training: Defaults of local training.
            name: Name of the task in the results.
            options: ``kind`` (``classification`` or ``next-token``), ``text``, ``target`` and
                ``client_column`` (names of columns), ``length`` (maximum tokens of a text), shares
                of the splits.

        Returns:
            The task.
        """
        spec = in_memory.from_texts(data, name, training, adapter=adapter, blocks=blocks)
        return cls(spec, {"pretrained": str(pretrained), **options})

    @classmethod
    def from_environment(
        cls,
        environment: str | Callable[..., Any],
        env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        *,
        name: str = "environment",
        **options: object,
    ) -> Task:
        """Create a task of deep agents, each in its own version of an environment (extra ``rl``).

        Args:
            environment: A class that extends ``gymnasium.Env``, or any function that returns such
                an environment; or its name at Gymnasium.
            env_kwargs: Keyword arguments of the environment: one mapping for all agents, or a list
                with one for each.
            name: Name of the task in the results.
            options: Options of the task ``gym``: ``agents`` (default: the length of the list),
                ``frames``, ``normalise``, ``parallel`` and others.

        Returns:
            The task.
        """
        if isinstance(env_kwargs, Sequence):
            options.setdefault("agents", len(env_kwargs))
        if isinstance(environment, str):
            given = {"env_id": environment, "env_kwargs": env_kwargs_text(env_kwargs)}
            return cls.from_name("gym", **given, **options)
        return cls(environment_spec(environment, env_kwargs, name), options)

    @classmethod
    def from_folder(cls, folder: str | Path, *, target: str, **options: object) -> Task:
        """Create a task from files.

        Args:
            folder: Folder with one CSV or Parquet file per client, or one file with a column that
                names the client.
            target: Column to predict.
            options: Options of the task ``tables``: ``ignore_columns``, ``client_column``, shares
                of the splits and others.

        Returns:
            The task.
        """
        return cls.from_name("tables", data=str(folder), target=target, **options)
