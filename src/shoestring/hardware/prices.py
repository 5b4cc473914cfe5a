"""What an hour of a GPU costs where it is rented: list prices, each with the page and the day it was read.

They change weekly and by provider, so they compare, they do not bill: `shoestring plan --price 0.42` counts instead.
A GPU without a line has no price here, and its cost is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shoestring.hardware.catalog import Target


@dataclass(frozen=True, kw_only=True)
class Price:
    """US dollars for one GPU for one hour, on demand, without tax."""

    usd_per_hour: float
    source: str
    date: str
    """When the source showed it, ISO 8601; empty for what was given by hand."""


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
"""By the device's name in the catalogue."""

FREE: Mapping[str, Price] = {
    "kaggle": Price(usd_per_hour=0.0, source="https://www.kaggle.com/docs/notebooks: free of charge", date="2026-11"),
    "colab": Price(
        usd_per_hour=0.0,
        source="https://research.google.com/colaboratory/faq.html: free of charge, as the target says",
        date="2026-11",
    ),
}
"""By the platform's name."""


def price(target: Target, usd_per_hour: float | None = None) -> Price | None:
    """What an hour of one of the target's GPUs costs; `usd_per_hour` where it was said. None where nobody knows."""
    if usd_per_hour is not None:
        return Price(usd_per_hour=usd_per_hour, source="as given", date="")
    if target.platform is not None and target.platform.name:
        return FREE.get(target.platform.name)
    return PRICES.get(target.device.name)
