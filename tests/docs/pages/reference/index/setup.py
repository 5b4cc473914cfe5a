"""A short run to load."""

import subprocess

subprocess.run(
    ["shoestring", "train", "legal", "--run", "runs/legal", "--set", "size=tiny", "--set", "epochs=1"], check=True
)
