"""One study a file: NAME.py declares cells, measure, tables and figures; NAME.md is the text around
the tables.
"""
