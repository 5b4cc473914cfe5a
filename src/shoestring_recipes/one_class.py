"""A note on data in which all samples have the same class."""

from collections.abc import Iterable, Iterator, Mapping


def one_class_notes(classes: Mapping[str, Iterable[str]], nouns: str) -> Iterator[str]:
    """Yield a note for each part of the data whose samples, which `nouns` names, all have one of its `classes`."""
    for part, names in classes.items():
        distinct = set(names)
        if len(distinct) == 1:
            consequence = "nothing can be learned from them" if part == "train" else "its metrics tell nothing"
            yield f"{part}: all {nouns} have the class {distinct.pop()}: {consequence}"
