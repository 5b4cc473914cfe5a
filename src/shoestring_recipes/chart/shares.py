"""How rows without parts are divided into training, validation and test."""

VALIDATION, TEST = 0.1, 0.1
PART_SHARES = {"train": 1 - VALIDATION - TEST, "validation": VALIDATION, "test": TEST}
"""The share of the rows in each part."""
