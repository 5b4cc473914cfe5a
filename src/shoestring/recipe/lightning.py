"""Classes of Lightning, recognized by the names of their base classes: nothing of Lightning is imported.

The distributions `lightning` and `pytorch-lightning` have classes of the same names that are not the same classes.
"""

from __future__ import annotations

MODULE, DATA_MODULE = "LightningModule", "LightningDataModule"
PACKAGES = ("lightning", "pytorch_lightning")


def base_of(kind: type, name: str) -> type | None:
    """Return Lightning's class `name` of which `kind` is a subclass; None if it is not one."""
    bases = (base for base in kind.__mro__[1:] if base.__name__ == name)
    return next((base for base in bases if base.__module__.partition(".")[0] in PACKAGES), None)


def overrides(kind: type, name: str) -> bool:
    """Return whether a LightningModule or LightningDataModule has its own version of a method of its base class."""
    base = base_of(kind, MODULE) or base_of(kind, DATA_MODULE)
    return getattr(kind, name, None) is not getattr(base, name, None)


def is_trainable(kind: object) -> bool:
    """Return whether `kind` is a LightningModule with a `training_step` of its own."""
    return isinstance(kind, type) and base_of(kind, MODULE) is not None and overrides(kind, "training_step")


def is_data_module(kind: object) -> bool:
    """Return whether `kind` is a LightningDataModule."""
    return isinstance(kind, type) and base_of(kind, DATA_MODULE) is not None
