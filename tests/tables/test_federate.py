"""From raw tables to a federation: splits, small clients, standardisation, names, fingerprints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.data.federated_dataset import Subset
from equipoise.data.tabular import ClientTables, TableConfig, build_federation, tables_from_values
from equipoise.data.tabular.io import align_tables
from equipoise.utils.errors import UsageError

SIZES = {"north": 60, "south": 90, "tiny": 8, "wee": 7}


def clinics(**more: list[object]) -> ClientTables:
    rng = np.random.default_rng(0)
    tables = {}
    for k, (name, n) in enumerate(SIZES.items()):
        age = rng.normal(50 + 10 * k, 10, n)
        tables[name] = {
            "age": age,
            "weight": rng.normal(70, 9, n),
            "ill": np.where(age > 55, "yes", "no"),
        }
    return tables_from_values(tables)


def made(tables: ClientTables, **choices: object):
    return build_federation(
        tables,
        TableConfig(**{"target": "ill", "small_clients": "drop", **choices}),
        np.random.default_rng(1),
    )


def everybody(data, name: str = "train"):
    return data.split(np.arange(data.clients), name)


def told(splits: dict[str, list[str]]) -> ClientTables:
    """Rows that say themselves what they are for; age is the number of the row."""
    return tables_from_values(
        {
            name: {
                "age": list(range(len(parts))),
                "ill": ["yes", "no"] * (len(parts) // 2),
                "part": parts,
            }
            for name, parts in splits.items()
        }
    )


def shared(tables: ClientTables, **choices: object):
    chosen = TableConfig(
        **{
            "target": "ill",
            "split_column": "part",
            "standardise": "none",
            "numbers": "age",
            **choices,
        }
    )
    return build_federation(align_tables(tables, chosen), chosen, np.random.default_rng(1))


def ages(data, name: str, client: int) -> list[int]:
    own = data.split(np.array([client]), name)
    return sorted(own.x[own.start[0] : own.start[0] + own.size[0], 0].int().tolist())


def test_rows_may_say_themselves_what_they_are_for() -> None:
    parts = ["train"] * 10 + ["Test"] * 6 + ["validation"] * 2 + [""] * 2
    data = shared(told({"a": parts, "b": parts[::-1]}), server_share=0.2).data
    lent = data.server("public")[0][:, 0].tolist() + data.server("test")[0][:, 0].tolist()
    assert ages(data, "test", 0) == [10, 11, 12, 13, 14, 15]
    assert ages(data, "val", 0) == [16, 17]
    assert ages(data, "test", 1) == [4, 5, 6, 7, 8, 9]
    assert sorted([*ages(data, "train", 0), *ages(data, "train", 1), *lent]) == sorted(
        [*range(10), *range(10, 20)]
    )
    assert len(ages(data, "train", 0)) == 8  # a fifth of its training rows is the server's


def test_without_validation_rows_a_share_of_the_training_rows_is_held_back() -> None:
    tables = told({"a": ["train"] * 20 + ["test"] * 4, "b": ["test"] * 4 + ["train"] * 20})
    data = shared(tables, server_share=0.1, val_share=0.25).data
    assert [len(ages(data, name, 0)) for name in ("train", "val", "test")] == [14, 4, 4]
    assert not shared(tables, val_share=0.0).data.has_split("val")


def test_all_that_is_wrong_with_a_column_of_splits_is_told_at_once() -> None:
    tables = told({"a": ["train"] * 12, "b": ["train"] * 8 + ["learn", "test", "val", "val"]})
    with pytest.raises(UsageError) as told_so:
        shared(tables)
    for words in (
        "holds 'learn'",
        "client 'a': no row is test",
        "client 'a': no row is val, but client 'b' has such",
    ):
        assert words in str(told_so.value)
    with pytest.raises(
        UsageError, match=r"no column 'parts' \(did you mean 'part'\?\): see --split-column"
    ):
        shared(tables, split_column="parts")


def test_statistics_come_from_training_rows_alone() -> None:
    data = made(clinics()).data
    x = everybody(data).x
    assert x.mean(0).abs().max() < 1e-5
    assert (x.std(0, correction=0) - 1).abs().max() < 1e-5
    assert everybody(data, "test").x.mean(0).abs().max() > 1e-3


def test_each_client_may_be_standardised_by_itself() -> None:
    found = made(clinics(), standardise="client")
    own = everybody(found.data)
    for k in range(found.data.clients):
        x = own.x[own.start[k] : own.start[k] + own.size[k]]
        assert x.mean(0).abs().max() < 1e-5
    rows = {"age": [50.0], "weight": [70.0]}
    north, south = (found.preprocessor.transform(rows, name) for name in ("north", "south"))
    assert abs(float(north[0, 0] - south[0, 0])) > 0.3
    np.testing.assert_array_equal(
        found.preprocessor.transform(rows), found.preprocessor.transform(rows, "nobody")
    )
    raw = made(clinics(), standardise="none").data
    assert everybody(raw).x[:, 0].mean() > 40


@pytest.mark.parametrize(
    ("small", "names"),
    [
        ("drop", ("north", "south")),
        ("pool", ("north", "south", "tiny + wee")),
        ("keep", ("north", "south", "tiny", "wee")),
    ],
)
def test_small_clients(small: str, names: tuple[str, ...]) -> None:
    found = made(clinics(), small_clients=small)
    assert found.names == found.data.names == found.preprocessor.clients == names
    assert found.data.clients == len(names)


def test_small_clients_are_refused_all_at_once_by_default() -> None:
    with pytest.raises(UsageError) as error:
        made(clinics(), small_clients="refuse")
    assert (
        "2 clients have fewer than 10 rows with a target (7 to 8: 'tiny', 'wee'): "
        "--small-clients pool puts them together" in str(error.value)
    )


def test_too_small_a_pool_takes_the_next_larger_client() -> None:
    alone = ClientTables(
        {name: table for name, table in clinics().clients.items() if name != "wee"}
    )
    assert made(alone, small_clients="pool").names == ("south", "north + tiny")


def test_rows_without_a_target_are_left_out_or_refused() -> None:
    tables = {name: {"x": np.arange(30) / 7, "ill": [None, "?", *["a", "b"] * 14]} for name in "kl"}
    data = made(tables_from_values(tables), small_clients="refuse").data
    assert sum(int(everybody(data, name).size.sum()) for name in ("train", "val", "test")) == 2 * 25
    with pytest.raises(UsageError) as error:
        made(tables_from_values(tables), missing="refuse")
    assert "column 'ill' of client 'k': no target in rows 1, 2" in str(error.value)
    assert "client 'l'" in str(error.value)


def test_targets_of_every_kind_are_carried_by_a_federation() -> None:
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=40), "t": rng.gamma(2.0, 10.0, 40), "e": rng.integers(0, 2, 40)}
    tables = tables_from_values({"k": columns, "l": columns})
    regression = made(tables, target="t", target_type="regression").data
    assert regression.target.kind == "regression"
    assert regression.classes == 1
    _, y, _ = everybody(regression).padded
    assert y.dtype == torch.float32
    assert y.shape == (2, int(everybody(regression).size[0]))
    survival = made(tables, target="t", event="e").data
    _, y, weight = everybody(survival).padded
    assert y.shape == (2, int(everybody(survival).size[0]), 2)
    assert set(y[..., 1].unique().tolist()) == {0.0, 1.0}
    assert weight is None
    ragged = made(
        tables_from_values({"k": columns, "l": {n: v[:30] for n, v in columns.items()}}),
        target="t",
        event="e",
    ).data
    assert everybody(ragged).padded[1].shape[2:] == (2,)


def test_names_follow_clients_into_subsets() -> None:
    data = made(clinics(), small_clients="keep").data
    part = Subset(data, np.array([3, 1]))
    assert part.names == ("wee", "south")
    assert part.target == data.target


def test_a_fingerprint_is_that_of_the_content() -> None:
    one, same = (made(clinics()).data.fingerprint() for _ in range(2))
    assert one == same
    assert len(one) == 64
    tables = clinics()
    north = tables.clients["north"]
    age = north.columns["age"]
    moved = replace(
        north, columns={**north.columns, "age": replace(age, numbers=age.numbers + np.eye(60)[5])}
    )
    assert made(ClientTables({**tables.clients, "north": moved})).data.fingerprint() != one


def test_the_server_may_bring_rows_of_its_own() -> None:
    rng = np.random.default_rng(3)
    age = rng.normal(50, 10, 40)
    server = {"age": age, "weight": rng.normal(70, 9, 40), "ill": np.where(age > 55, "yes", "no")}
    with_own = tables_from_values(clinics().clients, server)
    data = made(with_own).data
    assert sum(len(data.server(name)[1]) for name in ("public", "test")) == 40
    assert sum(int(everybody(data, name).size.sum()) for name in ("train", "val", "test")) == 150
    odd = tables_from_values(clinics().clients, {**server, "ill": ["maybe", *server["ill"][1:]]})
    with pytest.raises(
        UsageError, match="row 1 of the server's rows has a class that no client had"
    ):
        made(odd)
