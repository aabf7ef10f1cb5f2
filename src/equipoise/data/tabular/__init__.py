"""Tables of clients: read files, infer columns, and preprocess from federated statistics."""

from equipoise.data.tabular.columns import ClientTables, Table
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.io import read_tables, table_from_values, tables_from_values
from equipoise.data.tabular.pipeline import TabularFederation, build_federation
from equipoise.data.tabular.preprocessing import Preprocessor

__all__ = [
    "ClientTables",
    "Preprocessor",
    "Table",
    "TableConfig",
    "TabularFederation",
    "build_federation",
    "read_tables",
    "table_from_values",
    "tables_from_values",
]
