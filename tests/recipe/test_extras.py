import subprocess
import sys

import pytest

from shoestring.base.errors import UsageError
from shoestring.base.packages.requirements import require
from shoestring_recipes.temporal import Temporal
from tests.libraries import hide

HEAVY = {"torch", "pandas", "torchmetrics", "matplotlib"}


def modules_loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running `code`."""
    program = f"{code}\nimport sys; print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(process.stdout.split())


def test_finding_a_recipe_imports_nothing_heavy() -> None:
    assert not HEAVY & modules_loaded_by("from shoestring.recipe.finding import find; find('temporal')")


def test_planning_needs_no_extra() -> None:
    code = "from shoestring_recipes.temporal import Temporal; r = Temporal(); r.loss(r.model(), r.batch(2))"
    modules = modules_loaded_by(code)
    assert "torch" in modules  # so that the test can fail
    assert not HEAVY - {"torch"} & modules


@pytest.mark.parametrize("part", ["data", "evaluate"])
def test_error_names_missing_packages_and_the_extra(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    hide(monkeypatch, "pandas", "torchmetrics")
    with pytest.raises(UsageError, match=r"^2 libraries are not installed") as missing:
        Temporal().data() if part == "data" else Temporal().evaluate(Temporal().model(), [])
    assert [problem.split()[0] for problem in missing.value.problems] == ["pandas", "torchmetrics"]
    assert "[temporal]" in missing.value.hint


def test_error_names_only_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "torchmetrics")
    with pytest.raises(UsageError, match=r"^torchmetrics is not installed") as missing:
        require("temporal", "pandas", "torchmetrics")
    assert "pandas" not in missing.value.message
    require("temporal", "pandas")
