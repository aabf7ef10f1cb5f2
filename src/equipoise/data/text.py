"""Texts of clients, from tables or Hugging Face data sets, and their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.config.schema import option
from equipoise.data.federated_dataset import Ints
from equipoise.data.splits import UserRowShares
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.diagnostics import list_rows, raise_problems
from equipoise.data.tabular.io import (
    READERS,
    SERVER,
    align_tables,
    read_tables,
    split_by_client,
    table_from_values,
)
from equipoise.data.tabular.table import ClientTables, Table, TableLike
from equipoise.utils.errors import UsageError, did_you_mean, require
from equipoise.utils.huggingface import import_library, load_pretrained

PADDING = -1  # fills a row behind the end of its text
SAVED_DATASET_FILES = ("dataset_dict.json", "state.json")  # one of them is in a saved data set

Dataset = Any
"""A data set of the library `datasets`, or several by the name of their split."""


@dataclass(frozen=True)
class TextDataConfig(UserRowShares):
    """Where the texts are, and what is learned from them."""

    data: str = option(
        "",
        "table or folder of tables (CSV, Parquet), folder of a saved data set, or its name on the "
        "Hugging Face hub",
    )
    split: str = option("train", "split of the data set that clients have, where it has several")
    text: str = option("text", "column of texts")
    target: str = option("label", "column of classes; the next-token loss needs none")
    client_column: str = option(
        "client", "column that names the client, where all are in one table"
    )
    kind: str = option(
        "classification", "what is learned", choices=("classification", "next-token")
    )
    length: int = option(
        128, "tokens of a text that are read; what is behind them is cut off", low=2
    )


@dataclass(frozen=True)
class ClientTexts:
    """The texts of all clients.

    Attributes:
        clients: The names of the clients.
        owner: The client of each text, numbered from 0 `[n]`.
        texts: The texts.
        labels: The class of each text `[n]`.
        classes: The names of the classes; empty for the next-token loss.
        server: Texts and classes of the server, if it has any.
    """

    clients: tuple[str, ...]
    owner: Ints
    texts: list[str]
    labels: Ints
    classes: tuple[str, ...]
    server: tuple[list[str], Ints] | None


def read_texts(config: TextDataConfig) -> ClientTexts:
    """Read the texts that `--data` names: tables, a saved data set, or one of the hub.

    Raises:
        UsageError: If they cannot be read.
    """
    require(
        bool(config.data),
        "task 'text' needs --data: a table, a folder of tables or of a data set, or a name on the "
        "hub",
    )
    path = Path(config.data).expanduser()
    is_saved_dataset = any((path / name).is_file() for name in SAVED_DATASET_FILES)
    if path.is_file() or (path.is_dir() and not is_saved_dataset):
        tables = read_tables(path, config.client_column, TableConfig(target=config.target))
        return texts_from_tables(tables, config)
    require(
        path.suffix.lower() not in READERS,  # no name on the hub ends so
        f"there is no table '{config.data}': give an existing file or folder, see --data",
    )
    datasets = import_library("datasets", "a data set that is no table")

    def load(place: str) -> Dataset:
        if Path(place).is_dir():
            return datasets.load_from_disk(place)
        return datasets.load_dataset(place)

    data = load_pretrained("the data set", config.data, load)
    return _texts_from_one_table(data, config.data, config)


def texts_from_python(data: Dataset | TableLike, config: TextDataConfig) -> ClientTexts:
    """Convert texts in Python.

    Args:
        data: A data set, a pandas or Arrow table, or a table for each client's name.
        config: Which columns are used.

    Returns:
        The texts of all clients.
    """
    is_mapping = isinstance(data, Mapping) and not _has_splits(data)
    if not is_mapping or not all(map(_is_table, data.values())):
        return _texts_from_one_table(data, "the data", config)
    clients = {
        str(name): table_from_values(_to_table(table, config.target), f"client '{name}'")
        for name, table in data.items()
    }
    tables = ClientTables(clients, clients.pop(SERVER, None))
    return texts_from_tables(align_tables(tables, TableConfig(target=config.target)), config)


def _texts_from_one_table(data: Dataset, source: str, config: TextDataConfig) -> ClientTexts:
    """Read a table, or one split of a data set, that has a column of clients."""
    if _has_splits(data):
        require(
            config.split in data,
            f"the data set has no split '{config.split}': it has {', '.join(data)}; see --split",
        )
        data = data[config.split]
    table = table_from_values(_to_table(data, config.target), source, config.client_column)
    tables, diagnostics = split_by_client(table, config.client_column, source)
    raise_problems(diagnostics, tables.source)
    return texts_from_tables(tables, config)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "columns") or hasattr(value, "column_names")


def _has_splits(data: object) -> bool:
    """Whether it is a `datasets.DatasetDict`."""
    return isinstance(data, Mapping) and hasattr(data, "save_to_disk")


def _to_table(data: Dataset | TableLike, target: str) -> TableLike:
    """Convert a data set to an Arrow table with the names of its classes."""
    if not hasattr(data, "with_format"):
        return data
    names = getattr(data.features.get(target), "names", None)
    table = data.with_format("arrow")[:]
    if names is None:
        return table
    codes = table.column(target).to_pylist()
    labels = [None if code is None else names[code] for code in codes]
    return table.set_column(table.column_names.index(target), target, [labels])


def texts_from_tables(tables: ClientTables, config: TextDataConfig) -> ClientTexts:
    """Select the columns of texts and classes.

    Raises:
        UsageError: If a text or class is missing, or there is one class only.
    """
    has_classes = config.kind == "classification"
    owners = dict(tables.clients)
    if tables.server is not None:
        owners[SERVER] = tables.server
    texts: list[list[str]] = []
    labels: list[list[str]] = []
    for owner, table in owners.items():
        where = f"{tables.source}, '{owner}'" if len(tables.clients) > 1 else tables.source
        texts.append(_cells(table, config.text, "--text", where))
        if has_classes:
            labels.append(_cells(table, config.target, "--target", where))
        else:
            labels.append([""] * len(table))
    classes = sorted({label for own in labels for label in own}, key=_sort_key)
    require(
        not has_classes or len(classes) >= 2,
        f"{tables.source}: column '{config.target}' has one class only, "
        f"{classes[0]!r}: see --target",
    )
    code_of_class = {label: code for code, label in enumerate(classes)}
    codes = [np.array([code_of_class[label] for label in own], np.int64) for own in labels]
    num_clients = len(tables.clients)
    return ClientTexts(
        clients=tables.names,
        owner=np.repeat(np.arange(num_clients), [len(own) for own in texts[:num_clients]]),
        texts=[text for own in texts[:num_clients] for text in own],
        labels=np.concatenate(codes[:num_clients]),
        classes=tuple(classes) if has_classes else (),
        server=None if tables.server is None else (texts[-1], codes[-1]),
    )


def _cells(table: Table, column: str, option: str, location: str) -> list[str]:
    """Return the cells of a column as texts; missing ones are refused."""
    names = ", ".join(map(repr, table.columns))
    suggestion = did_you_mean(column, table.columns)
    message = f"{location} has no column '{column}'{suggestion}: see {option} (it has {names})"
    require(column in table.columns, message)
    codes, labels = table.columns[column].labels
    rows = list_rows(table.row_numbers[codes < 0].tolist())
    message = f"{location}: column '{column}' is empty in {rows}: fill it, or remove these rows"
    require(bool((codes >= 0).all()), message)
    return [labels[code] for code in codes]


def _sort_key(label: str) -> tuple[float, str]:
    """Sort numbers by their value, then words."""
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label


class Tokenizer:
    """The tokenizer that belongs to a pretrained model."""

    def __init__(self, name: str) -> None:
        """Load the tokenizer of this folder or name on the hub."""
        transformers = import_library("transformers", "task 'text'")
        self.name = name
        load = transformers.AutoTokenizer.from_pretrained
        self._tokenize = load_pretrained("the tokenizer of", name, load)

    def rows(self, texts: list[str], length: int) -> NDArray[np.int32]:
        """Convert texts to tokens.

        Args:
            texts: The texts.
            length: The largest number of tokens of a row.

        Returns:
            Tokens `[n, T]`, filled up with -1, where T is the length of the longest row.

        Raises:
            UsageError: If a text gives no token.
        """
        tokens = self._tokenize(texts, truncation=True, max_length=length)["input_ids"]
        require(
            any(tokens),
            f"there is no tokenizer in '{self.name}' that makes anything of these texts: save the "
            "model's there by tokenizer.save_pretrained",
        )
        rows = np.full((len(tokens), max(2, max(map(len, tokens)))), PADDING, np.int32)
        for row, own, text in zip(rows, tokens, texts, strict=True):
            if not own:
                raise UsageError(
                    f"the tokenizer in '{self.name}' makes nothing of the text {text!r}: "
                    "remove such rows"
                )
            row[: len(own)] = own
        return rows


@dataclass(frozen=True)
class TextReader:
    """Converts new texts to the rows that the model of a run takes.

    Attributes:
        column: The column of texts.
        pretrained: The model whose tokenizer is used.
        length: The number of tokens of a row.
    """

    column: str
    pretrained: str
    length: int

    def rows(self, texts: TableLike | Iterable[str]) -> NDArray[np.int32]:
        """Convert a sequence of texts, or a table with the run's column of texts `[n, length]`.

        Raises:
            UsageError: If these are no texts.
        """
        require(not isinstance(texts, str), "one text was given: give a list of texts, or a table")
        if isinstance(texts, Table) or _is_table(texts):
            source = "the table of rows"
            table = table_from_values(texts, source)
            texts = _cells(table, self.column, "the run's --text", source)
        texts = list(texts)
        not_text = next((text for text in texts if not isinstance(text, str)), "")
        require(
            isinstance(not_text, str),
            f"{not_text!r} is no text: give a list of texts, or a table with a column "
            f"'{self.column}'",
        )
        tokens = Tokenizer(self.pretrained).rows(texts, self.length)
        rows = np.full((len(tokens), self.length), PADDING, np.int32)
        rows[:, : tokens.shape[1]] = tokens
        return rows
