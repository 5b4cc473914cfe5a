"""The list of targets: machines in a table, and the many GPUs by family."""

from shoestring.answers.document import Fact, Table
from shoestring.answers.targets import document
from shoestring.hardware.catalog import DEVICES
from shoestring.hardware.targets import known


def test_gpus_without_a_platform_are_listed_by_family() -> None:
    answer = document(list(known().values()))
    machines = next(element for element in answer.content if isinstance(element, Table))
    assert [row[0] for row in machines.rows] == [target.name for target in known().values() if target.platform]
    families = {element.title: element.content[0] for element in answer.content if isinstance(element, Fact)}
    assert [name for labels in families.values() for name, _ in labels.pairs] == list(DEVICES)
    assert ("rtx3090", "23.56 GiB") in families["GeForce RTX 30"].pairs
    assert "rtx3090x2" in answer.content[-1].text
