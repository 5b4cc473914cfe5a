"""The terminal display of results: bars for values to compare, tables for values to look up."""
