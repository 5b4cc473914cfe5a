"""Documents in a terminal, by rich."""
