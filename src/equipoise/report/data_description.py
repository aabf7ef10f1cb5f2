"""`equipoise data describe`: a task's data, or a user's tables, in words and as JSON."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from equipoise.core import SupervisedTask, Task
from equipoise.data.tabular.description import ColumnDescription, Description
from equipoise.utils.errors import UsageError

SHADES = " ░▒▓█"
MAX_PICTURE_CLIENTS = 40
MAX_PICTURE_CLASSES = 60
TEXT_WIDTH = 80
MAX_NAME_WIDTH = 22  # characters of a client's or column's name
MIN_VALUES_WIDTH = 12  # characters of the column "values"
MAX_CLASS_COLUMNS = 4  # classes up to which each has a column
SPLITS = ("train", "val", "test")


# ------------------------------------------------------------------ tasks


def describe_task(task: Task) -> dict[str, Any]:
    """Count the rows and labels of a task.

    Args:
        task: A task with labelled samples.

    Returns:
        Numbers and lists, ready for JSON.

    Raises:
        UsageError: The task has environments instead of data.
    """
    if not isinstance(task, SupervisedTask):
        raise UsageError(
            f"task '{task.info.name}' has environments, not data: there is nothing to describe"
        )
    ids = torch.arange(task.info.num_clients)
    rows = {split: task.num_rows(ids, split).numpy() for split in SPLITS if task.has_split(split)}
    counts = task.label_counts(ids).numpy()
    num_classes = counts.shape[1]
    shares = counts / counts.sum(1, keepdims=True)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(1) / np.log(num_classes)
    return {
        "task": task.info.name,
        "clients": task.info.num_clients,
        "classes": num_classes,
        "shape": list(task.example_inputs(1).shape[1:]),
        "parameters": sum(param.numel() for param in task.module.parameters()),
        "frozen": sum(param.numel() for param in task.frozen.values()),
        "rows": {split: _size_statistics(sizes) for split, sizes in rows.items()},
        "server": {split: task.num_server_rows(split) for split in ("public", "test")},
        "classes_per_client": _size_statistics((counts > 0).sum(1)),
        "label_entropy": {
            "mean": float(entropy.mean()),
            "min": float(entropy.min()),
            "max": float(entropy.max()),
        },
        "label_counts": counts.tolist(),
    }


def _size_statistics(sizes: npt.NDArray[np.int64]) -> dict[str, float]:
    return {
        "total": int(sizes.sum()),
        "min": int(sizes.min()),
        "median": float(np.median(sizes)),
        "max": int(sizes.max()),
    }


def task_text(description: Mapping[str, Any]) -> str:
    """Write the result of `describe_task` for people, with a picture of who holds which classes."""
    shape = " x ".join(map(str, description["shape"]))
    first = (
        f"{description['task']}: {description['clients']} clients, samples of {shape}, "
        f"{description['classes']} classes, model with {description['parameters']:,} parameters"
    )
    if description["frozen"]:
        first += f", of which {description['frozen']:,} are frozen"
    lines = [first]
    for split, rows in description["rows"].items():
        sizes = f"{rows['min']} to {rows['max']}, median {rows['median']:g}"
        lines.append(f"{split:>6}: {rows['total']:,} rows; a client has {sizes}")
    server = description["server"]
    lines.append(f"server: {server['public']:,} public rows, {server['test']:,} test rows")
    lines.append(
        f"a client trains on {description['classes_per_client']['median']:g} classes (median); "
        f"evenness of its labels {description['label_entropy']['mean']:.2f} on average "
        "(1 is even, 0 is one class)"
    )
    return "\n".join([*lines, *_label_picture(np.array(description["label_counts"]))])


def _label_picture(counts: npt.NDArray[np.int64]) -> list[str]:
    """Draw a line per client and a column per class; darker is a larger share of its rows."""
    num_clients = min(len(counts), MAX_PICTURE_CLIENTS)
    num_classes = min(counts.shape[1], MAX_PICTURE_CLASSES)
    shares = counts[:num_clients, :num_classes] / counts[:num_clients].sum(1, keepdims=True)
    levels = np.ceil(np.sqrt(shares) * (len(SHADES) - 1)).astype(int)  # the root shows small shares
    width = len(str(num_clients - 1))
    lines = [""]
    for client, row in enumerate(levels):
        lines.append(f"client {client:>{width}} |{''.join(SHADES[level] * 2 for level in row)}|")
    hidden = []
    if len(counts) > num_clients:
        hidden.append(f"{len(counts) - num_clients} clients")
    if counts.shape[1] > num_classes:
        hidden.append(f"{counts.shape[1] - num_classes} classes")
    if hidden:
        lines.append(f"({' and '.join(hidden)} more)")
    return lines


# ------------------------------------------------------------------ tables


def tables_entries(description: Description, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the description of tables for JSON, with the command that would run them."""
    command = suggested_command(description, options)
    return {**msgspec.to_builtins(description), "command": command}


def tables_text(description: Description, options: Mapping[str, str]) -> str:
    """Write the description of tables for people.

    Args:
        description: Clients, columns and problems.
        options: Options that the user gave, by their names on the command line.

    Returns:
        Clients, columns, notes, problems, and the command to go on with.
    """
    num_rows = sum(client.rows for client in description.clients)
    lines = [
        f"{description.source}: {len(description.clients)} clients, {num_rows:,} rows",
        f"target: {_target_text(description)}",
        "",
        *_client_lines(description),
        "",
        *_column_lines([column for column in description.columns if column.kind != "left out"]),
        *_left_out_lines(description),
    ]
    notes = [str(finding) for finding in description.findings if not finding.is_problem]
    problems = [str(problem) for problem in description.problems]
    lines += _bullet_lines("note", notes)
    lines += _bullet_lines("problem", problems)
    command = suggested_command(description, options)
    if not command:
        return "\n".join([*lines, "", "solve the problems above, then describe the data again"])
    if problems:
        advice = "this solves the problems: compare methods and decide which model to use:"
    else:
        advice = "nothing is in the way. Compare methods and decide which model to use:"
    return "\n".join([*lines, "", advice, f"  {command}"])


def suggested_command(description: Description, options: Mapping[str, str]) -> str:
    """Return the command that compares methods on these tables.

    Args:
        description: What the tables are like.
        options: Options that the user gave, by their names on the command line.

    Returns:
        The command with the options that solve all problems, and those that notes advise; empty if
        some problem needs more.
    """
    merged = solving_options(description, options)
    words = [word for name, value in merged.items() for word in (f"--{name}", value)]
    return shlex.join(["equipoise", "compare", *words]) if merged else ""


def solving_options(description: Description, options: Mapping[str, str]) -> dict[str, str]:
    """Return the given options with those that solve all problems, and those that notes advise.

    Args:
        description: What the tables are like.
        options: Options that the user gave, by their names on the command line.

    Returns:
        The options; empty if some problem needs more.
    """
    if not all(problem.option for problem in description.problems):
        return {}
    merged = {name: value for name, value in options.items() if name not in ("method", "task")}
    for finding in description.findings:
        name, _, value = finding.option.removeprefix("--").partition(" ")
        if name == "ignore-columns" and merged.get(name):
            columns = [*merged[name].split(","), *value.split(",")]
            value = ",".join(dict.fromkeys(columns))
        if name and (finding.is_problem or name not in merged):
            merged[name] = value
    return merged


def _left_out_lines(description: Description) -> list[str]:
    """Name the columns that are left out, together where the reason is the same."""
    names: dict[str, list[str]] = {}
    for column in description.columns:
        if column.kind == "left out":
            names.setdefault(column.values, []).append(column.name)
    if not names:
        return []
    texts = [f"{', '.join(columns)}: {reason}" for reason, columns in names.items()]
    return ["", "columns that are left out:", *map(_bullet, texts)]


def _bullet(text: str) -> str:
    return textwrap.fill(text, TEXT_WIDTH, initial_indent="- ", subsequent_indent="  ")


def _bullet_lines(title: str, texts: Sequence[str]) -> list[str]:
    if not texts:
        return []
    plural = "s" if len(texts) > 1 else ""
    return ["", f"{len(texts)} {title}{plural}:", *map(_bullet, texts)]


def _target_text(description: Description) -> str:
    target = description.target
    if target is None:
        return "not clear, see the problems"
    if target.kind == "classification":
        return f"{target.name}, {len(target.classes)} classes"
    event = f" with event {target.event}" if target.event else ""
    return f"{target.name}, {target.kind}{event}"


def _client_lines(description: Description) -> list[str]:
    """List the clients with the shares of few classes, the mean target, or the share of events."""
    target = description.target
    kind = target.kind if target else ""
    classes = target.classes if target else ()
    shown_classes = classes if len(classes) <= MAX_CLASS_COLUMNS else ()
    mean_titles = {"regression": ["mean of target"], "survival": ["event seen"]}
    mean_title = mean_titles.get(kind, [])
    table = [["client", "rows", "no target", *shown_classes, *mean_title]]
    for client in description.clients:
        row = [client.name, f"{client.rows:,}", str(client.without_target)]
        if shown_classes:
            total = max(1, sum(client.classes))
            row += [f"{100 * count / total:.1f} %" for count in client.classes]
        if mean_title:
            row.append(_mean_text(client.mean, is_share=kind == "survival"))
        table.append(row)
    return _align(table)


def _mean_text(mean: float | None, is_share: bool) -> str:
    if mean is None:
        return ""
    return f"{100 * mean:.1f} %" if is_share else f"{mean:.4g}"


def _column_lines(views: Sequence[ColumnDescription]) -> list[str]:
    """List columns, with their values cut to fit the line."""
    names = [_shorten(name, MAX_NAME_WIDTH) for name in ("column", *(view.name for view in views))]
    kinds = ["becomes", *(view.kind for view in views)]
    missing = ["missing", *(_missing_text(view) for view in views)]
    values = ["values", *(view.values for view in views)]
    other_widths = sum(max(map(len, column)) for column in (names, kinds, missing))
    available = max(MIN_VALUES_WIDTH, TEXT_WIDTH - other_widths - 6)  # three gaps of two
    values = [_shorten(value, available).ljust(MIN_VALUES_WIDTH) for value in values]
    table = [list(row) for row in zip(names, kinds, values, missing, strict=True)]
    return _align(table, numbers_right=False)


def _missing_text(view: ColumnDescription) -> str:
    if not view.missing:
        return "-"
    name, share = view.missing_at[0]
    return f"{100 * view.missing:.1f} % ({name} {100 * share:.0f} %)"


def _align(table: Sequence[Sequence[str]], numbers_right: bool = True) -> list[str]:
    """Lay out columns side by side: the first to the left, the others to the right or left."""
    rows = [[_shorten(row[0], MAX_NAME_WIDTH), *row[1:]] for row in table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        for cell, width in zip(row[1:], widths[1:], strict=True):
            cells.append(cell.rjust(width) if numbers_right else cell.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return lines


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
