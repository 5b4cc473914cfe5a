import subprocess
import sys

import pytest

from shoestring.errors import UsageError
from shoestring.recipe.extras import require
from shoestring.recipes.temporal import Temporal

HEAVY = {"torch", "pandas", "torchmetrics", "matplotlib"}


def modules_loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running `code`."""
    program = f"{code}\nimport sys; print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(process.stdout.split())


def test_finding_a_recipe_imports_nothing_heavy() -> None:
    assert not HEAVY & modules_loaded_by("from shoestring.recipe.finding import find; find('temporal')")


def test_planning_needs_no_extra() -> None:
    code = "from shoestring.recipes.temporal import Temporal; r = Temporal(); r.loss(r.model(), r.batch(2))"
    modules = modules_loaded_by(code)
    assert "torch" in modules  # so that the test can fail
    assert not HEAVY - {"torch"} & modules


@pytest.mark.parametrize("part", ["data", "evaluate"])
def test_error_names_missing_packages_and_the_extra(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    for module in ("pandas", "torchmetrics"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match="pandas, torchmetrics") as missing:
        Temporal().data() if part == "data" else Temporal().evaluate(Temporal().model(), [])
    assert "pip install 'shoestring[temporal]'" in str(missing.value)


def test_error_names_only_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(UsageError, match=r"^not installed: torchmetrics$|torchmetrics") as missing:
        require("temporal", "pandas", "torchmetrics")
    assert "pandas" not in missing.value.message
    require("temporal", "pandas")
