"""Warnings of libraries that are not shown."""

import logging

from shoestring.base.packages.quiet import quiet_bitsandbytes


def test_bitsandbytes_does_not_warn_of_a_kernel_that_it_has_not(monkeypatch):
    """Its loggers are below the one of the package."""
    package = logging.getLogger("bitsandbytes")
    monkeypatch.setattr(package, "level", logging.NOTSET)
    logging.getLogger("bitsandbytes.backends.cpu.ops").manager._clear_cache()
    quiet_bitsandbytes()
    module = logging.getLogger("bitsandbytes.backends.cpu.ops")
    assert not module.isEnabledFor(logging.WARNING) and module.isEnabledFor(logging.ERROR)
