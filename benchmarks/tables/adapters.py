"""Where LoRA's adapters are in the architectures of transformers."""

from collections import Counter

from benchmarks.tables.markdown import Row, percent, read_result, table

_RESULT = "adapters"
_PRESETS = ("linear", "mlp", "attention")
_SMALL_SHARE = 0.9


def causal() -> str:
    """Return a row for each architecture with a causal head."""
    rows = [row for row in read_result(_RESULT)["rows"] if row["causal"] and "targets" in row]
    head = (
        "type",
        "stacked experts",
        *(f"`{preset}`" for preset in _PRESETS),
        "largest without, of `linear`",
        "update",
    )
    return table(head, (_cells(row) for row in sorted(rows, key=lambda row: str(row["type"]))))


def others() -> str:
    """Return the architectures of `hf:` without a causal head of which `linear` leaves a tenth of the weights out."""
    rows = [row for row in read_result(_RESULT)["rows"] if not row["causal"] and "targets" in row]
    rows = [row for row in rows if row["targets"]["linear"].get("share", 0) < _SMALL_SHARE]
    return table(("type", "`linear`", "largest without"), ([row["type"], *_linear(row)] for row in rows))


def counts() -> str:
    """Return how many architectures there are, how many have adapters on most of their weights, and what failed."""
    rows = read_result(_RESULT)["rows"]
    lines = []
    for title, is_causal in (("with a causal head", True), ("others that `hf:` can build", False)):
        of_kind = [row for row in rows if row["causal"] == is_causal]
        outcomes = Counter(_outcome(row) for row in of_kind)
        updates = Counter(_update(row).partition(":")[0].partition(";")[0] for row in of_kind if "targets" in row)
        text = ", ".join(f"{outcome}: {count}" for outcome, count in outcomes.most_common())
        ran = ", ".join(f"{outcome}: {count}" for outcome, count in updates.most_common() if outcome)
        lines.append([title, len(of_kind), text, ran or "not tried"])
    return table(("architectures", "number", "`lora_targets=linear`", "an update of a small model"), lines)


def not_built() -> str:
    """Return the architectures of which the library makes no model with its default configuration, and why."""
    rows = [row for row in read_result(_RESULT)["rows"] if "not_built" in row]
    names = ", ".join(f"`{row['type']}`" for row in rows)
    return f"{names}.\n"


def _outcome(row: Row) -> str:
    if "not_built" in row:
        return "no model with its default configuration"
    linear = row["targets"]["linear"]
    if "share" not in linear:
        return "refused"
    return "at least 90% of the weights" if linear["share"] >= _SMALL_SHARE else "less than 90%"


def _cells(row: Row) -> list[str]:
    shares = [_share(row["targets"][preset]) for preset in _PRESETS]
    return [row["type"], "yes" if row["stacked_experts"] else "", *shares, _linear(row)[1], _update(row)]


def _share(target: Row) -> str:
    return percent(target["share"], 0) if "share" in target else "refused"


def _linear(row: Row) -> list[str]:
    """Return the share of the weights that `linear` adapts, and the largest weights without adapters."""
    linear = row["targets"]["linear"]
    without = linear.get("without", {}).items() if linear.get("share", 0) < 1 else ()
    names = ", ".join(f"{name} {percent(share, 0)}" for name, share in without if share >= 0.005)
    return [_share(linear), names]


def _update(row: Row) -> str:
    """Return what became of an update, without the names of weights."""
    text: str = row.get("update", "")
    return text.partition(", base_model")[0].partition("Error: ")[0].replace("|", "/")
