"""A short run to export."""

import subprocess

command = ["shoestring", "train", "legal", "--run", "runs/legal", "--set", "size=tiny", "--set", "epochs=1"]
subprocess.run(command, check=True)
