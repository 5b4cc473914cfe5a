"""The settings of a run, under the name that code outside imports."""

from shoestring.base.settings import Settings

__all__ = ["Settings"]
