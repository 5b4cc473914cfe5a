"""The exchange of gradients between GPUs, compared with measurements."""

import dataclasses

import pytest

from shoestring.base.units import MIB
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate.disk import saving_seconds
from shoestring.planning.estimate.exchange import LINKS, exchange_seconds, exposed_seconds, link_of, replica_seconds


@pytest.mark.parametrize(("size", "measured"), [(1, 0.4108e-3), (16, 4.32696e-3), (64, 17.069e-3)])
def test_exchange_of_two_t4s_matches_measurements(size: int, measured: float) -> None:
    assert exchange_seconds(size * MIB, 2) == pytest.approx(measured, rel=0.04)


def test_exchange_grows_with_the_ring() -> None:
    assert exchange_seconds(1e9, 1) == 0.0
    two, four = (exchange_seconds(1e9, gpus) - LINKS[0].latency for gpus in (2, 4))
    assert four == pytest.approx(1.5 * two)


def test_exposed_exchange_is_not_overlapped_by_backward() -> None:
    total = exchange_seconds(1e9, 2)
    assert exposed_seconds(1e9, 2, LINKS[0], backward=0.0) == total
    assert exposed_seconds(1e9, 2, LINKS[0], backward=0.1) == pytest.approx(total - 0.1)
    assert exposed_seconds(1e9, 2, LINKS[0], backward=10.0) == exchange_seconds(25 * MIB, 2)


def test_gradients_are_sent_when_they_are_final() -> None:
    link = dataclasses.replace(LINKS[0], bandwidth=25 * MIB, latency=0.0)

    def seconds(*final: tuple[float, float], gpus: int = 2, sends_weights: bool = False) -> float:
        """Of 100 MiB, which take 4 s."""
        sizes = [(remaining, size * MIB) for remaining, size in final]
        return replica_seconds(100 * MIB, gpus, link, sends_weights=sends_weights, final=sizes)

    assert seconds() == seconds((0.0, 100)) == 4.0
    assert seconds((3.0, 25), (2.0, 25)) == 2.0  # one after the other
    assert seconds((9.0, 25), (8.0, 25), (0.5, 25)) == 1.5  # the third ends after half a second
    assert seconds((9.0, 10), (8.0, 10)) == 4.0  # a bucket is not full
    assert seconds((9.0, 50), (8.0, 40)) == 0.4  # the last 10 MiB
    assert seconds((9.0, 100), gpus=4) == 0.0
    assert seconds((6.0, 100), gpus=4) == 2.0
    assert seconds((9.0, 100), sends_weights=True) == 4.0


def test_link_belongs_to_the_device() -> None:
    assert link_of(DEVICES["t4"]) == LINKS[0] and link_of(DEVICES["t4"], "tandem") == LINKS[1]
    nvlink, direct, staged, narrow = (link_of(DEVICES[name]) for name in ("a100-80", "l4", "rtx3090", "rtx4060"))
    assert nvlink.bandwidth > 5 * direct.bandwidth and direct.bandwidth > 2 * staged.bandwidth
    assert staged.bandwidth == pytest.approx(2 * narrow.bandwidth)
    assert (nvlink.hides_gathers, direct.hides_gathers, staged.hides_gathers) == (True, True, False)
    assert "host memory" in staged.name and "host memory" not in direct.name
    # What is not known of a GPU counts as missing.
    unknown = dataclasses.replace(DEVICES["l4"], peer_access=None, pcie="")
    assert link_of(unknown) == dataclasses.replace(staged, name=link_of(unknown).name)
    assert all(link_of(device).bandwidth > 1e9 for device in DEVICES.values())


def test_save_is_written_and_read_back() -> None:
    assert saving_seconds(1e9, 200e6) == 10.0
    assert saving_seconds(1e9, None) is None
