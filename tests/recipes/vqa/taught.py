"""A teacher's texts on disk: pictures of bars whose colour is asked for."""

import json
from pathlib import Path

from PIL import Image

COLOURS = {"đỏ": (200, 30, 30), "xanh": (30, 30, 200), "vàng": (220, 200, 40)}


def row(number: int, **changes: object) -> dict[str, object]:
    colour = list(COLOURS)[number % 3]
    return {
        "img_id": number,
        "image_path": f"images/{number}.png",
        "question": "Màu gì trong ảnh?",
        "reasoning_type": "DESCRIPTIVE",
        "teacher_answer": f"màu {colour}",
        "teacher_reasoning": f"Trong ảnh có màu {colour}.",
        "teacher_raw": "",
        "reasoning_weight": 4.0,
    } | changes


def written(folder: Path, rows: list[dict[str, object]]) -> Path:
    """The file of `rows` in `folder`, with an image for each."""
    (folder / "images").mkdir(parents=True)
    for number in range(len(rows)):
        picture = Image.new("RGB", (20, 14), list(COLOURS.values())[number % 3])
        picture.putpixel((number % 20, number % 14), (255, 255, 255))
        picture.save(folder / "images" / f"{number}.png")
    path = folder / "teacher_outputs.jsonl"
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows), encoding="utf-8")
    return path
