"""Sets of rhetorical roles, by the data sets that use them."""

from collections.abc import Mapping, Sequence

from shoestring.base.errors import nearest

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

_ABBREVIATIONS = {"aop": "arguments of petitioner", "aor": "arguments of respondent"}


def role_names(chosen: str) -> tuple[str, ...]:
    """Return the roles of one of `SETS`, or of a comma-separated list, in the order of the classes.

    The list is not validated; see `roles_problem`.
    """
    return SETS.get(chosen) or tuple(name.strip() for name in chosen.split(","))


def roles_problem(chosen: str) -> str | None:
    """Return why a value of the option `roles` is invalid; None if it is valid."""
    names = role_names(chosen)
    if len(names) < 2:
        return f"roles={chosen}: {nearest(chosen, SETS)}; or list two or more names, separated by commas"
    if not all(names) or len(class_numbers(names)) < len(names):
        return f"roles={chosen}: a name is empty or occurs twice"
    return None


def class_numbers(roles: Sequence[str]) -> dict[str, int]:
    """Return the class of each role by its name in lower case, including common abbreviations."""
    numbers = {name.casefold(): number for number, name in enumerate(roles)}
    return numbers | {short: numbers[name] for short, name in _ABBREVIATIONS.items() if name in numbers}


def unknown_role_problem(label: str, known: Mapping[str, int]) -> str:
    """Return why a row with the unknown role `label` cannot be used."""
    matching_sets = [name for name, roles in SETS.items() if label.casefold() in class_numbers(roles)]
    if matching_sets:
        return f"role {label!r} belongs to {matching_sets[0]}: --set roles={matching_sets[0]}"
    return f"role {label!r} is unknown; {nearest(label.casefold(), known)}"
