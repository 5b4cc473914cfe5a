"""Drivers of ranks, one for each test file that needs it."""

import pytest

from tests.lab.ranks.driver import Driver


@pytest.fixture(scope="module")
def ranks_on(simulator_libraries, tmp_path_factory):
    """A function that returns the driver of ranks on the GPUs of a target."""
    drivers = {}

    def driver(target, **variables):
        if target not in drivers:
            folder = tmp_path_factory.mktemp("simulated")
            drivers[target] = Driver(target, folder, simulator_libraries, **variables).__enter__()
        return drivers[target]

    yield driver
    for each in drivers.values():
        each.__exit__()
