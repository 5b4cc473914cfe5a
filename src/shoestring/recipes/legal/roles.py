"""The roles that a sentence of a judgment may have, by the data sets that use them."""

from collections.abc import Mapping, Sequence

from shoestring.errors import nearest

SETS: dict[str, tuple[str, ...]] = {
    # Nigam et al., LegalSeg (2025): 7,120 judgments of Indian courts.
    "legalseg": (
        "None", "Facts", "Issue", "Arguments of Petitioner", "Arguments of Respondent", "Reasoning", "Decision"
    ),
    # Bhattacharya et al., JURIX 2019: 50 judgments of the Supreme Court of India.
    "law-ai": (
        "Facts", "Ruling by Lower Court", "Argument", "Statute", "Precedent", "Ratio of the decision",
        "Ruling by Present Court",
    ),
    # Kalamkar et al., LREC 2022, BUILD/InRhetoricalRoles.
    "build": (
        "PREAMBLE", "FAC", "RLC", "ISSUE", "ARG_PETITIONER", "ARG_RESPONDENT", "ANALYSIS", "STA", "PRE_RELIED",
        "PRE_NOT_RELIED", "RATIO", "RPC", "NONE",
    ),
}  # fmt: skip

_ALSO = {"aop": "arguments of petitioner", "aor": "arguments of respondent"}


def names(chosen: str) -> tuple[str, ...]:
    """The roles of one of `SETS`, or those that a text lists with commas between; the order is that of the classes.

    What is listed may be wrong: see `problem`.
    """
    return SETS.get(chosen) or tuple(name.strip() for name in chosen.split(","))


def problem(chosen: str) -> str | None:
    """What is wrong with an option `roles`."""
    found = names(chosen)
    if len(found) < 2:
        return f"roles={chosen}: {nearest(chosen, SETS)}; or two names and more with commas between"
    if not all(found) or len(numbers(found)) < len(found):
        return f"roles={chosen}: a name is empty or there twice"
    return None


def numbers(roles: Sequence[str]) -> dict[str, int]:
    """The class of each role by its name in lower case, common short forms among them."""
    found = {name.casefold(): number for number, name in enumerate(roles)}
    return found | {short: found[name] for short, name in _ALSO.items() if name in found}


def unknown(label: str, known: Mapping[str, int]) -> str:
    """Why a row with this `label` cannot be used."""
    others = [name for name, roles in SETS.items() if label.casefold() in numbers(roles)]
    if others:
        return f"role {label!r} is one of {others[0]}: --set roles={others[0]}"
    return f"role {label!r} is unknown; {nearest(label.casefold(), known)}"
