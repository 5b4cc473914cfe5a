"""fp16 can be turned off where a plan could choose it."""

import pytest

import shoestring
from tests.slow import slow_except


@pytest.mark.parametrize("recipe", slow_except(["legal", "cloud"], "cloud"))
def test_plan_keeps_fp32(recipe):
    plan = shoestring.plan(recipe, on="kaggle-t4", size="tiny", micro_batch=2, precision="fp32")
    assert plan.settings.precision == "fp32" and plan.fits
