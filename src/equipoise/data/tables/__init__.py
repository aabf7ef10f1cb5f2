"""Tables of clients as they are: read, understood column by column, and prepared from sums and counts alone."""

from equipoise.data.tables.choices import TableChoices
from equipoise.data.tables.federate import Federated, federate
from equipoise.data.tables.preparation import Preparation
from equipoise.data.tables.reading import read_tables
from equipoise.data.tables.table import Table, Tables, table_of, tables_of

__all__ = [
    "Federated",
    "Preparation",
    "Table",
    "TableChoices",
    "Tables",
    "federate",
    "read_tables",
    "table_of",
    "tables_of",
]
