"""Images that keep their ratio of width to height, as the guide and the processor of Qwen2.5-VL resize them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shoestring.base.errors import DataError
from shoestring.integrations.huggingface import versions
from shoestring_recipes.chart import IMAGE_TOKENS, Chart, Options
from shoestring_recipes.chart.data import read_parts
from shoestring_recipes.chart.policy import SIZES
from shoestring_recipes.chart.presentation import TOKEN_SIDE, Presentation

SIDES = st.integers(4, 1500)


def guide_size(width, height):
    """Return the size in the guide's run: the area of 320 tokens (its `_resize_up`), then the processor's defaults."""
    scale = (320 * 28 * 28 / (width * height)) ** 0.5
    rows, columns = versions.resize_for_qwen(int(height * scale), int(width * scale))
    return columns, rows


@settings(max_examples=200, derandomize=True, deadline=None)
@given(SIDES, SIDES)
def test_sizes_are_those_of_the_guide_within_the_tokens(width, height):
    ratio = max(width, height) / min(width, height)
    if ratio > 200:
        return
    guide = guide_size(width, height) if ratio < 100 else None  # it fails where rounding exceeds the largest ratio
    for size, tokens in IMAGE_TOKENS.items():
        fitted = Presentation(SIZES[size].pixels, True)._fitting_size(width, height)
        assert all(side % TOKEN_SIDE == 0 and side for side in fitted)
        assert fitted[0] * fitted[1] <= tokens * TOKEN_SIDE**2
        if size == "full" and guide and guide[0] * guide[1] <= tokens * TOKEN_SIDE**2:
            assert fitted == guide


@pytest.mark.parametrize(
    ("size", "expected"), [((640, 480), (588, 420)), ((1920, 1080), (672, 364)), ((90, 90), (476, 476))]
)
def test_images_keep_their_shape(size, expected):
    assert Presentation(SIZES["full"].pixels, True).fit(Image.new("RGB", size)).size == expected
    assert Presentation(SIZES["full"].pixels).fit(Image.new("RGB", size)).size == (560, 448)
    assert (guide_size(*size) == expected) == (size != (90, 90))  # 18 x 18 tokens there


def write_shapes(folder, shapes):
    (folder / "png").mkdir()
    rows = [{"imgname": f"{n}.png", "query": f"how many {n}?", "label": n} for n in range(len(shapes))]
    for row, shape in zip(rows, shapes, strict=True):
        Image.new("RGB", shape, "red").save(folder / "png" / row["imgname"])
    (folder / "rows.json").write_text(json.dumps(rows))
    return folder


def test_the_processor_leaves_fitted_images_as_they_are(tmp_path):
    folder = write_shapes(tmp_path, [(40, 30), (30, 40), (300, 10), (5, 5)])
    recipe = Chart(Options(size="tiny", keep_aspect=True, data=folder))
    charts = recipe.whole()
    images = recipe._processor(charts).image_processor
    assert isinstance(images, versions.image_processor_class())
    sizes = [charts[index]["image"].size for index in range(4)]
    grids = images(images=[charts[index]["image"] for index in range(4)], return_tensors="pt")["image_grid_thw"]
    assert [(columns * 14, rows * 14) for _, rows, columns in grids.tolist()] == sizes
    assert len(set(sizes)) == 4 and sizes[0] == sizes[1][::-1]


def test_images_that_are_too_long_are_bad_rows(tmp_path):
    folder = write_shapes(tmp_path, [(10, 10), (402, 2)])
    assert len(read_parts(folder, Presentation((28, 28)), "refuse")["train"]) == 2
    with pytest.raises(DataError, match="1 of 2 rows") as refused:
        read_parts(folder, Presentation((28, 28), True), "refuse")
    assert "402x2 pixels" in refused.value.problems[0]
    recipe = Chart(Options(size="tiny", keep_aspect=True))
    (question,) = recipe.inputs([{"image": folder / "png" / "1.png", "query": "?"}])
    with pytest.raises(ValueError, match="402x2 pixels"):
        question.load()
