"""The week's GPU quota of an account: how long a session may be, and what is said when too little is left."""

from collections.abc import Mapping
from typing import Any

from shoestring.base.units import seconds_text
from shoestring.remote.kaggle.client import KaggleError

_LEAST_SHARE, _MOST_LEAST_SECONDS = 0.1, 1800.0
"""A session shorter than this part of the limit, or than half an hour, is not worth its start."""


def session_seconds(quota: Mapping[str, Any], limit: float) -> float | None:
    """Return the limit of a session within the quota, at most `limit`; None if too little is left.

    `quota` is what `Client.quota` returns.
    """
    left = _left_seconds(quota)
    if quota["reserved"] > 0:  # another session of the account uses the quota meanwhile
        left /= 2
    if quota["total"] <= 0 or left >= limit:  # an account without a total is not limited
        return limit
    if left >= min(_LEAST_SHARE * limit, _MOST_LEAST_SECONDS):
        return float(int(left) or left)
    return None


def left_text(quota: Mapping[str, Any]) -> str:
    """Return how much of the quota is left, for a message."""
    return f"{seconds_text(max(0, _left_seconds(quota)))} of the week's GPU quota are left"


def quota_error(reason: str, refresh: str | None) -> KaggleError:
    """Return the error for a command that does not wait for the refresh."""
    return KaggleError(f"{reason}; it is refreshed {f'on {refresh}' if refresh else 'within a week'}", "quota")


def _left_seconds(quota: Mapping[str, Any]) -> float:
    return float(quota["total"] - quota["used"] - quota["reserved"])
