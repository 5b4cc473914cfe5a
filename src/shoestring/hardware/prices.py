"""List prices of rented GPUs per hour, each with its source and date.

Prices change weekly and differ between providers, so these are for comparison only; `shoestring plan --price 0.42`
overrides them. The cost of a GPU without an entry is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shoestring.hardware.catalog import Target


@dataclass(frozen=True, kw_only=True)
class Price:
    """US dollars for one GPU for one hour, on demand, without tax."""

    usd_per_hour: float
    """US dollars."""
    source: str
    """The page with the price, or that the user set it."""
    date: str
    """The date of the source, ISO 8601; empty for a price set by the user."""


_RUNPOD = "https://www.runpod.io/pricing, as transcribed by"
_OPENRELAY = "https://openrelay.inc/pricing, as transcribed by github.com/api-evangelist/openrelay"

PRICES: Mapping[str, Price] = {
    "rtx3090": Price(usd_per_hour=0.18, source=_OPENRELAY, date="2026-09-20"),
    "rtx4090": Price(usd_per_hour=0.29, source=_OPENRELAY, date="2026-09-20"),
    "a100-40": Price(
        usd_per_hour=1.99,
        source="https://lambda.ai/instances (of eight), as transcribed by github.com/api-evangelist/lambda-labs",
        date="2026-09-20",
    ),
    "a100-80": Price(
        usd_per_hour=1.39,
        source=f"{_RUNPOD} github.com/datareceipts/data-receipts: SXM, community cloud",
        date="2026-11-09",
    ),
    "h100": Price(
        usd_per_hour=2.69,
        source=f"{_RUNPOD} github.com/datareceipts/data-receipts: SXM, community cloud",
        date="2026-11-09",
    ),
    "h200": Price(usd_per_hour=4.59, source=f"{_RUNPOD} github.com/api-evangelist/runpod", date="2026-10-07"),
}
"""By the name of the device in the catalogue."""

FREE: Mapping[str, Price] = {
    "kaggle": Price(usd_per_hour=0.0, source="https://www.kaggle.com/docs/notebooks: free of charge", date="2026-11"),
    "colab": Price(
        usd_per_hour=0.0,
        source="https://research.google.com/colaboratory/faq.html: free of charge, as the target says",
        date="2026-11",
    ),
}
"""By the name of the platform."""


def price(target: Target, usd_per_hour: float | None = None) -> Price | None:
    """Return the hourly price of one of the target's GPUs, or `usd_per_hour` if given; None if the price is unknown."""
    if usd_per_hour is not None:
        return Price(usd_per_hour=usd_per_hour, source="set by the user", date="")
    if target.platform is not None and target.platform.name:
        return FREE.get(target.platform.name)
    return PRICES.get(target.device.name)
