"""Two short runs to export."""

import subprocess

for recipe in ("temporal", "legal"):
    options = ["--set", "size=tiny", "--set", "epochs=1"]
    subprocess.run(["shoestring", "train", recipe, "--run", f"runs/{recipe}", *options], check=True)
