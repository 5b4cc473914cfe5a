"""Answers as a person reads them in a terminal: what is compared is a bar, what is looked up a table."""
