import subprocess
import sys

import pytest

from shoestring.errors import UsageError
from shoestring.recipe.extras import require
from shoestring.recipes.temporal import Temporal

HEAVY = {"torch", "pandas", "torchmetrics", "matplotlib"}


def loaded_by(code: str) -> set[str]:
    """What a fresh interpreter has loaded after `code`."""
    program = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_the_recipe_is_found_without_anything_heavy() -> None:
    assert not HEAVY & loaded_by("from shoestring.recipe.finding import find; find('temporal')")


def test_planning_needs_no_extra() -> None:
    code = "from shoestring.recipes.temporal import Temporal; r = Temporal(); r.loss(r.model(), r.batch(2))"
    loaded = loaded_by(code)
    assert "torch" in loaded  # so that the test can fail
    assert not HEAVY - {"torch"} & loaded


@pytest.mark.parametrize("part", ["data", "evaluate"])
def test_one_error_names_what_is_missing_and_the_extra(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    for module in ("pandas", "torchmetrics"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match="pandas, torchmetrics") as missing:
        Temporal().data() if part == "data" else Temporal().evaluate(Temporal().model(), [])
    assert "pip install 'shoestring[temporal]'" in str(missing.value)


def test_only_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(UsageError, match=r"^not installed: torchmetrics$|torchmetrics") as missing:
        require("temporal", "pandas", "torchmetrics")
    assert "pandas" not in missing.value.message
    require("temporal", "pandas")
