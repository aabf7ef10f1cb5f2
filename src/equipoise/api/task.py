"""A task as a value: what is learned, from which data, with which options."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.core import TrainingConfig
from equipoise.data.tabular.config import format_names
from equipoise.data.transforms import InputTransform
from equipoise.tasks import TaskSpec, find_task, in_memory
from equipoise.tasks.in_memory import Model
from equipoise.tasks.tables import TableLearningConfig
from equipoise.utils.errors import UsageError, nearest


@dataclass(frozen=True)
class Task:
    """What is learned. Make one by :meth:`named`, :meth:`from_tables`, :meth:`from_datasets`, :meth:`from_texts` or
    :meth:`from_folder`."""

    spec: TaskSpec = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = [item.name for item in dataclasses.fields(self.spec.config)]
        for name in self.options:
            if name not in known:
                raise UsageError(
                    f"task '{self.spec.name}' has no option '{name}'{nearest(name, known)}"
                )

    @property
    def name(self) -> str:
        return self.spec.name

    @classmethod
    def named(cls, name: str, **options: Any) -> Task:
        """A task that ships, with options of its own: ``Task.named("synthetic", clients=50)``."""
        return cls(find_task(name), options)

    @classmethod
    def from_tables(
        cls,
        tables: Mapping[str, Any],
        *,
        target: str,
        kind: str = "",
        ignore: Sequence[str] = (),
        name: str = "tables",
        **options: Any,
    ) -> Task:
        """Clients' tables that are in memory.

        Arguments:
            tables: a table for each client's name: a pandas or Arrow table, or columns by name. One that is called
                ``server`` holds the server's rows; without it, a share of every client's rows is used.
            target: the column to be predicted.
            kind: classification, regression or survival; by default classes.
            ignore: columns to leave out.
            name: what the task is called in the results.
            options: shares of the splits, ``event``, ``small`` and the like, as the task ``own`` has them.
        """
        told = {"target": target, "kind": kind, "ignore_columns": format_names(ignore), **options}
        unknown = [
            option
            for option in told
            if option not in {item.name for item in dataclasses.fields(TableLearningConfig)}
        ]
        choices = TableLearningConfig(
            **{option: value for option, value in told.items() if option not in unknown}
        )
        return cls(in_memory.from_tables(tables, name, choices), told)

    @classmethod
    def from_datasets(
        cls,
        clients: Mapping[str, Any] | Iterable[Any],
        *,
        model: Model,
        fresh: bool = False,
        adapter: str = "",
        blocks: str = "",
        server: Any = None,
        classes: int | None = None,
        form: InputTransform | None = None,
        training: TrainingConfig | None = None,
        name: str = "datasets",
        **options: Any,
    ) -> Task:
        """Clients' samples as arrays, tensors or torch data sets, with any model.

        Arguments:
            clients: for each client (or client's name) a pair ``(x, y)`` of arrays or tensors, or a torch data set of
                such pairs. Bytes ``[H, W, C]`` are images, other whole numbers tokens; labels are 0, 1, ...
            model: a module, whose weights are where training starts; a function ``(shape, classes) -> module``, which
                is called under the run's seed; or the name of a model that ships.
            fresh: whether the run's seed draws the module's layers anew.
            adapter: freeze the model and train low-rank adapters over it, ``"rank=8 targets=*.query,*.value"``; see
                :class:`equipoise.models.lora.Adapter` for what else may be said.
            blocks: blocks of the model by patterns of its parameters' names, ``"base=features.* head=classifier.*"``;
                without them, those that the module declares (``module.blocks``), or the last layer and the others.
            server: the server's samples, likewise; without them, a share of every client's is used.
            classes: the number of classes, if the labels do not show it.
            form: how stored samples become the model's input, such as ``equipoise.data.transforms.Pixels(mean, std)``.
            training: defaults of local training.
            name: what the task is called in the results.
            options: shares of the splits and the like.
        """
        how = {"server": server, "classes": classes, "form": form, "training": training}
        return cls(
            in_memory.from_datasets(
                clients, model, name, fresh=fresh, adapter=adapter, blocks=blocks, **how
            ),
            options,
        )

    @classmethod
    def from_texts(
        cls,
        data: Any,
        *,
        pretrained: str | Path,
        adapter: str = "",
        blocks: str = "",
        training: TrainingConfig | None = None,
        name: str = "texts",
        **options: Any,
    ) -> Task:
        """Clients' texts under a pretrained model of the ``transformers`` library (extra ``text``).

        Arguments:
            data: a data set of Hugging Face's ``datasets``, or a pandas or Arrow table, with a column that names the
                client; or a table for each client's name, of which ``server`` is the server's.
            pretrained: the folder of a model with its tokenizer, or its name on the hub.
            adapter: as for :meth:`from_datasets`; patterns are those of the model's names, such as ``*.query``.
            blocks: as for :meth:`from_datasets`.
            training: defaults of local training.
            name: what the task is called in the results.
            options: ``kind`` (``classification`` or ``next-token``), ``text``, ``target`` and ``client_column`` (names
                of columns), ``length`` (tokens of a text that are read), shares of the splits.
        """
        spec = in_memory.from_texts(data, name, training, adapter=adapter, blocks=blocks)
        return cls(spec, {"pretrained": str(pretrained), **options})

    @classmethod
    def from_folder(cls, folder: str | Path, *, target: str, **options: Any) -> Task:
        """A folder with one CSV or Parquet file per client, or one file with a column that names the client.

        ``options`` are those of the task ``own``: ``ignore_columns``, ``client_column``, shares of the splits.
        """
        return cls.named("tables", data=str(folder), target=target, **options)
