"""The check of random numbers: whether samples and losses can be repeated, which exact resuming depends on."""

from collections.abc import Mapping
from typing import Any

from shoestring.base.units import plural
from shoestring.runs.check.finding import Finding, passed, warned

_HINT = "shoestring train works, but its result cannot be repeated; see docs/guides/data.md#random-numbers"


def check_randomness(data: Mapping[str, Any] | None, loss: Mapping[str, Any] | None) -> list[Finding]:
    """Return the findings about random numbers, and about a loss with a state, from the stages `randomness` and `loss`
    of a probe; None for one that was not reported.
    """
    findings = []
    if data:
        if data["difference"]:
            findings.append(warned("random numbers", data["difference"], _HINT))
        elif data["samples"]:
            seeded = f"; {plural(len(data['generators']), 'generator')} held by the data or collate are seeded for each"
            findings.append(
                passed(
                    "random numbers",
                    f"{plural(data['samples'], 'sample')} had the same values when fetched again with the same seeds"
                    + (seeded if data["generators"] else ""),
                )
            )
        else:
            findings.append(passed("random numbers", f"samples were not fetched twice: {data['skipped']}"))
    if loss:
        if loss["unseeded"]:
            findings.append(warned("random numbers of the loss", loss["unseeded"], _HINT))
        if loss["changed"]:
            hint = "see docs/guides/recipe.md for a state that is changed once an update"
            findings.append(warned("state of the loss", loss["changed"], hint))
    return findings
