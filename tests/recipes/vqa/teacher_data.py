"""Writes the texts of a teacher and images of one color, whose color is the answer."""

import json
from pathlib import Path

from PIL import Image

COLORS = {"đỏ": (200, 30, 30), "xanh": (30, 30, 200), "vàng": (220, 200, 40)}


def make_row(number: int, **changes: object) -> dict[str, object]:
    color = list(COLORS)[number % 3]
    return {
        "img_id": number,
        "image_path": f"images/{number}.png",
        "question": "Màu gì trong ảnh?",
        "reasoning_type": "DESCRIPTIVE",
        "teacher_answer": f"màu {color}",
        "teacher_reasoning": f"Trong ảnh có màu {color}.",
        "teacher_raw": "",
        "reasoning_weight": 4.0,
    } | changes


def write_data(folder: Path, rows: list[dict[str, object]]) -> Path:
    """Write the file of `rows` and an image for each row in `folder`, and return the file's path."""
    (folder / "images").mkdir(parents=True)
    for number in range(len(rows)):
        image = Image.new("RGB", (20, 14), list(COLORS.values())[number % 3])
        image.putpixel((number % 20, number % 14), (255, 255, 255))
        image.save(folder / "images" / f"{number}.png")
    path = folder / "teacher_outputs.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
