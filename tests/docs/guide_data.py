"""Small synthetic data in the formats that the readers of the five guides have: files to train, and new inputs.

Each function writes into an empty folder, whose content is what the pages in `docs/guides/ways/` name.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from PIL import Image

from shoestring_recipes.chart.policy import SIZES
from shoestring_recipes.chart.synthetic import draw_chart, make_chart
from tests.recipes.cloud.images import optical_image, radar_image, write_image
from tests.recipes.temporal.market import aggregate, random_bars
from tests.recipes.vqa.teacher_data import COLORS, make_row, write_data

_SENTENCES = {
    "Facts": "The appellant {} the land on {} March.",
    "Issue": "The question is whether the court {} in the year {}.",
    "Arguments of Petitioner": "Counsel for the petitioner {} that section {} applies.",
    "Arguments of Respondent": "Counsel for the respondent {} that section {} does not apply.",
    "Reasoning": "We {} that the limitation of {} days has passed.",
    "Decision": "The appeal {} with costs of {} rupees.",
    "None": "Judgment {} by the bench, page {}.",
}
_VERBS = ("sold", "erred", "submitted", "contended", "hold", "is dismissed", "delivered")


def write_vqa(folder: Path) -> None:
    """Write `vqa/` with a teacher's texts and images, and `new/` with questions alone."""
    write_data(folder / "vqa", [make_row(number) for number in range(60)])
    (folder / "new").mkdir()
    lines = []
    for number, (name, color) in enumerate(COLORS.items()):
        Image.new("RGB", (20, 14), color).save(folder / "new" / f"{name}.png")
        lines.append({"id": number, "image_path": f"{name}.png", "question": "Màu gì trong ảnh?"})
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / "new" / "questions.jsonl").write_text(text, encoding="utf-8")


def write_legal(folder: Path) -> None:
    """Write `judgments/` with sentences and their roles, a file for each judgment, and `new.txt`, a judgment alone."""
    generator = random.Random(0)
    (folder / "judgments").mkdir()
    for number in range(40):
        lines = []
        for (role, pattern), verb in zip(_SENTENCES.items(), _VERBS, strict=True):
            for _ in range(2):
                lines.append(f"{pattern.format(verb, generator.randrange(1, 31))}\t{role}\n")
        (folder / "judgments" / f"{number:03d}.txt").write_text("".join(lines))
    sentences = [pattern.format(verb, 7) for pattern, verb in zip(_SENTENCES.values(), _VERBS, strict=True)]
    (folder / "new.txt").write_text("\n".join(sentences) + "\n")


def write_temporal(folder: Path) -> None:
    """Write `bars/merged_M15_multiTF.csv` with two symbols in M15 beside their H1 and H4 bars, and `today.csv`."""
    frames = []
    for seed, symbol in enumerate(("EURUSD", "GBPUSD")):
        bars = random_bars(1100, symbol=symbol, spacing="15min", seed=seed)
        for name, spacing in (("H1", "1h"), ("H4", "4h")):
            coarse = aggregate(bars, spacing).set_index("time")[["open", "high", "low", "close"]].shift()  # has closed
            hours = coarse.reindex(bars["time"].dt.floor(spacing)).add_suffix(f"_{name}")
            bars = bars.join(hours.reset_index(drop=True))
        frames.append(bars.rename(columns={"volume": "tick_volume"}).astype({"symbol": "str"}))
    (folder / "bars").mkdir()
    pd.concat([frame.head(1000) for frame in frames]).to_csv(folder / "bars" / "merged_M15_multiTF.csv", index=False)
    pd.concat([frame.tail(600) for frame in frames]).to_csv(folder / "today.csv", index=False)


def write_chart(folder: Path) -> None:
    """Write `charts/` with rows in JSON and images in `png/`, and `new/` with questions alone."""
    for name, numbers, columns in (
        ("charts", range(40), ("query", "label")),
        ("new", range(900, 903), ("query",)),
    ):
        (folder / name / "png").mkdir(parents=True)
        rows = []
        for number in numbers:
            chart = make_chart(number)
            draw_chart(chart, SIZES["tiny"].pixels).save(folder / name / "png" / f"{number}.png")
            values = {"query": chart.query, "label": chart.annotations()["label"]}
            rows.append({"imgname": f"{number}.png", **{column: values[column] for column in columns}})
        (folder / name / f"{name}.json").write_text(json.dumps(rows, indent=1))


def write_cloud(folder: Path) -> None:
    """Write `tiles/` in SEN12MS-CR's folders, `tables/data.csv` with the split, and `new/` without clear images."""
    rows = []
    for scene, patches in ((8, range(24)), (42, range(24, 30)), (63, range(30, 36))):
        for patch in patches:
            names = _write_tile(folder / "tiles", scene, patch, ("s1", "s2", "s2_cloudy"))
            split = 1 if patch < 24 else 2 if patch < 30 else 3
            folders = [f"ROIs2017_winter_{kind}/{kind}_{scene}" for kind in ("s1", "s2", "s2_cloudy")]
            rows.append(",".join([str(split), *folders, names["s2"], names["s1"], names["s2_cloudy"]]))
    (folder / "tables").mkdir()
    (folder / "tables" / "data.csv").write_text("\n".join(rows) + "\n")
    for patch in range(90, 92):
        _write_tile(folder / "new", 108, patch, ("s1", "s2_cloudy"))


def _write_tile(root: Path, scene: int, patch: int, kinds: Sequence[str]) -> dict[str, str]:
    """Write the images of a tile, and return their names by kind."""
    images = {"s1": radar_image(patch), "s2": optical_image(patch) // 4, "s2_cloudy": optical_image(patch) // 2}
    names = {kind: f"ROIs2017_winter_{kind}_{scene}_p{patch}.tif" for kind in kinds}
    for kind, name in names.items():
        write_image(root / f"ROIs2017_winter_{kind}" / f"{kind}_{scene}" / name, images[kind])
    return names
