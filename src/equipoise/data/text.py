"""Texts of clients, from tables or Hugging Face data sets, and their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.config.schema import option
from equipoise.data.federated_dataset import Ints
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
from equipoise.data.tabular.table import ClientTables, Table
from equipoise.data.user_rows import UserRowShares
from equipoise.utils.errors import UsageError, nearest
from equipoise.utils.huggingface import import_library, load_pretrained

END = -1  # what fills a row behind the end of its text
SAVED = ("dataset_dict.json", "state.json")  # files by which a folder is a data set that was saved


@dataclass(frozen=True)
class TextDataConfig(UserRowShares):
    """Where the texts are, and what is learned from them."""

    data: str = option(
        "",
        "table or folder of tables (CSV, Parquet), folder of a saved data set, or its name on the Hugging Face hub",
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
    """Every row's text and class, whose it is (clients numbered from 0), and the server's, if it has any."""

    clients: tuple[str, ...]
    owner: Ints
    texts: list[str]
    labels: Ints
    classes: tuple[str, ...]
    server: tuple[list[str], Ints] | None


def read_texts(choices: TextDataConfig) -> ClientTexts:
    """From whatever ``--data`` names."""
    if not choices.data:
        raise UsageError(
            "task 'text' needs --data: a table, a folder of tables or of a data set, or a name on the hub"
        )
    path, client = Path(choices.data).expanduser(), choices.client_column
    if path.is_file() or (path.is_dir() and not any((path / name).is_file() for name in SAVED)):
        return texts_from_tables(
            read_tables(path, client, TableConfig(target=choices.target)), choices
        )
    if path.suffix.lower() in READERS:  # no name on the hub ends so
        raise UsageError(
            f"there is no table '{choices.data}': give an existing file or folder, see --data"
        )
    return texts_from_tables(_by_client(_data_set(choices), choices.data, choices), choices)


def texts_from_python(data: Any, choices: TextDataConfig) -> ClientTexts:
    """From a data set, a pandas or Arrow table, or a table for each client's name."""
    if isinstance(data, Mapping) and not _has_splits(data) and all(map(_is_table, data.values())):
        named = {
            str(name): table_from_values(_plain(table, choices.target), f"client '{name}'")
            for name, table in data.items()
        }
        server = named.pop(SERVER, None)
        return texts_from_tables(
            align_tables(ClientTables(named, server), TableConfig(target=choices.target)), choices
        )
    return texts_from_tables(_by_client(_split(data, choices), "the data", choices), choices)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "columns") or hasattr(value, "column_names")


def _has_splits(data: Any) -> bool:
    """Whether it is what the library calls a dictionary of data sets."""
    return isinstance(data, Mapping) and hasattr(data, "save_to_disk")


def _by_client(data: Any, source: str, choices: TextDataConfig) -> ClientTables:
    client = choices.client_column
    table = table_from_values(_plain(data, choices.target), source, client)
    tables, diagnostics = split_by_client(table, client, source)
    raise_problems(diagnostics, tables.source)
    return tables


def _data_set(choices: TextDataConfig) -> Any:
    datasets = import_library("datasets", "a data set that is no table")

    def load(place: str) -> Any:
        if Path(place).is_dir():
            return datasets.load_from_disk(place)
        return datasets.load_dataset(place)

    return _split(load_pretrained("the data set", choices.data, load), choices)


def _split(data: Any, choices: TextDataConfig) -> Any:
    """One split of a data set that has several."""
    if not _has_splits(data):
        return data
    if choices.split not in data:
        raise UsageError(
            f"the data set has no split '{choices.split}': it has {', '.join(data)}; see --split"
        )
    return data[choices.split]


def _plain(data: Any, target: str) -> Any:
    """A data set of the library as an Arrow table, its classes by their names."""
    if not hasattr(data, "with_format"):
        return data
    names = getattr(data.features.get(target), "names", None)
    table = data.with_format("arrow")[:]
    if names is None:
        return table
    place = table.column_names.index(target)
    called = [None if code is None else names[code] for code in table.column(target).to_pylist()]
    return table.set_column(place, target, [called])


def texts_from_tables(tables: ClientTables, choices: TextDataConfig) -> ClientTexts:
    """The columns that are learned from; texts or classes that are missing are refused."""
    named = choices.kind == "classification"
    texts, labels = [], []
    everybody = [
        *tables.clients.items(),
        *([] if tables.server is None else [(SERVER, tables.server)]),
    ]
    for owner, table in everybody:
        where = f"{tables.source}, '{owner}'" if len(tables.clients) > 1 else tables.source
        texts.append(_cells(table, choices.text, "--text", where))
        labels.append(
            _cells(table, choices.target, "--target", where) if named else [""] * len(table)
        )
    classes = sorted({label for own in labels for label in own}, key=_in_order)
    if named and len(classes) < 2:
        raise UsageError(
            f"{tables.source}: column '{choices.target}' has one class only, {classes[0]!r}: see --target"
        )
    place = {label: code for code, label in enumerate(classes)}
    codes = [np.array([place[label] for label in own], np.int64) for own in labels]
    clients = len(tables.clients)
    return ClientTexts(
        tables.names,
        np.repeat(np.arange(clients), [len(own) for own in texts[:clients]]),
        [text for own in texts[:clients] for text in own],
        np.concatenate(codes[:clients]),
        tuple(classes) if named else (),
        (texts[-1], codes[-1]) if tables.server is not None else None,
    )


def _cells(table: Table, column: str, option: str, where: str) -> list[str]:
    if column not in table.columns:
        has = ", ".join(map(repr, table.columns))
        raise UsageError(
            f"{where} has no column '{column}'{nearest(column, table.columns)}: see {option} (it has {has})"
        )
    codes, names = table.columns[column].labels
    if (codes < 0).any():
        rows = list_rows(table.row_numbers[codes < 0].tolist())
        raise UsageError(
            f"{where}: column '{column}' is empty in {rows}: fill it, or remove these rows"
        )
    return [names[code] for code in codes]


def _in_order(label: str) -> tuple[float, str]:
    """Numbers by their value, then words."""
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label


class Tokenizer:
    """The tokenizer that belongs to a pretrained model."""

    def __init__(self, name: str) -> None:
        transformers = import_library("transformers", "task 'text'")
        self.name = name
        self._cut: Any = load_pretrained(
            "the tokenizer of", name, transformers.AutoTokenizer.from_pretrained
        )

    def rows(self, texts: list[str], length: int) -> NDArray[np.int32]:
        """Tokens ``[n, T]``, filled up with -1, where T is the longest text's and ``length`` at most."""
        found = self._cut(texts, truncation=True, max_length=length)["input_ids"]
        if not any(found):
            raise UsageError(
                f"there is no tokenizer in '{self.name}' that makes anything of these texts: save the model's there by "
                "tokenizer.save_pretrained"
            )
        if empty := [text for text, tokens in zip(texts, found, strict=True) if not tokens]:
            raise UsageError(
                f"the tokenizer in '{self.name}' makes nothing of the text {empty[0]!r}: remove such rows"
            )
        rows = np.full((len(found), max(2, max(map(len, found)))), END, np.int32)
        for row, tokens in zip(rows, found, strict=True):
            row[: len(tokens)] = tokens
        return rows


@dataclass(frozen=True)
class TextReader:
    """New texts as the rows that a run's model takes."""

    column: str
    pretrained: str
    length: int

    def rows(self, texts: Any) -> NDArray[np.int32]:
        """Of a sequence of texts, or of a table with the run's column of texts."""
        if isinstance(texts, str):
            raise UsageError("one text was given: give a list of texts, or a table")
        if isinstance(texts, Table) or _is_table(texts):
            texts = _cells(
                table_from_values(texts, "the table of rows"),
                self.column,
                "the run's --text",
                "the table of rows",
            )
        texts = list(texts)
        if odd := [text for text in texts if not isinstance(text, str)]:
            raise UsageError(
                f"{odd[0]!r} is no text: give a list of texts, or a table with a column '{self.column}'"
            )
        found = Tokenizer(self.pretrained).rows(texts, self.length)
        wide = np.full((len(found), self.length), END, np.int32)
        wide[:, : found.shape[1]] = found
        return wide
