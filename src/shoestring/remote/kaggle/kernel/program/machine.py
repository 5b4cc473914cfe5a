"""What the machine of a session has: GPUs that torch can use, a disk, the internet."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from typing import Any

from shoestring.remote.kaggle.kernel.program.files import MIB
from shoestring.remote.kaggle.kernel.program.installation import installed_version
from shoestring.remote.kaggle.kernel.program.places import WORKING, SessionError
from shoestring.remote.kaggle.kernel.program.session import Session

PROBE_BYTES = 4 * MIB
KNOWN_CAPABILITY = (7, 5)  # that of a T4: for this one and later ones every build of torch has kernels


def require_gpu(gpus: list[str]) -> None:
    """Raise SessionError if the machine has no GPU: Kaggle gives none to an account without a verified number."""
    if not gpus:
        raise SessionError(
            "Kaggle gave this session no GPU, so nothing was trained",
            "verify the account's phone number on www.kaggle.com/settings, see whether GPU quota is left, and "
            "start again; or shoestring kaggle start --allow-cpu with another --run trains on the CPU all the same",
        )


def require_kernels() -> None:
    """Raise SessionError for a GPU that the image's torch has no kernels for, such as a P100."""
    for name, (major, minor) in gpu_capabilities():
        # To import torch takes seconds, so it is asked only where its builds differ.
        archs = torch_archs() if (major, minor) < KNOWN_CAPABILITY else []
        if archs and not any(arch_major == major and arch_minor <= minor for arch_major, arch_minor in archs):
            has = " ".join(f"sm_{arch_major}{arch_minor}" for arch_major, arch_minor in archs)
            raise SessionError(
                f"Kaggle gave this session a {name} (sm_{major}{minor}), for which torch "
                f"{installed_version('torch')} of its image has no kernels, only for {has}, so nothing was trained",
                "start again: Kaggle may give it another GPU; or start with --on kaggle-t4x2 and another --run",
            )


def facts(*, internet: bool) -> dict[str, Any]:
    """Return what this machine is."""
    gpus = []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        process = subprocess.run(query, capture_output=True, timeout=30)
        gpus = process.stdout.decode(errors="replace").splitlines() if process.returncode == 0 else []
    return {
        "python": sys.version.split()[0],
        "shoestring": None,
        "brought": {},
        "gpus": gpus,
        "disk_free_bytes": None,
        "internet": internet,
    }


def gpu_capabilities() -> list[tuple[str, tuple[int, int]]]:
    """Return the name and the compute capability of each GPU; none if the driver does not say it."""
    result = []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
        process = subprocess.run(query, capture_output=True, timeout=30)
        for line in process.stdout.decode(errors="replace").splitlines():
            match = re.fullmatch(r"(.+), *(\d+)\.(\d)", line.strip())
            if match:
                result.append((match[1], (int(match[2]), int(match[3]))))
    return result


def torch_archs() -> list[tuple[int, int]]:
    """Return the compute capabilities that the image's torch has kernels for; none if it does not say it."""
    code = "import torch; print(*torch.cuda.get_arch_list())"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
        archs = re.findall(r"sm_(\d+)(\d)", process.stdout.decode(errors="replace"))
        return [(int(major), int(minor)) for major, minor in archs]
    return []


def has_internet() -> bool:
    """Return whether the index of packages answers within a few seconds: to look up its name has no time limit."""
    answers: list[bool] = []

    def connect() -> None:
        with contextlib.suppress(OSError):
            socket.create_connection(("pypi.org", 443), timeout=3).close()
            answers.append(True)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(4)
    return bool(answers)


def probe_disk(session: Session) -> int:
    """Write to the disk: what the system says about free space is that of the whole host."""
    path = WORKING / ".shoestring-probe"
    try:
        with path.open("wb") as file:
            for _ in range(PROBE_BYTES // MIB):
                file.write(os.urandom(MIB))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SessionError(
            f"{WORKING} cannot hold {PROBE_BYTES // MIB} MiB: {error.strerror}", "start the session again"
        ) from None
    finally:
        path.unlink(missing_ok=True)
    used = sum(path.lstat().st_size for path in WORKING.rglob("*") if path.is_file())
    return max(0, min(shutil.disk_usage(WORKING).free, int(session.config["output_bytes"]) - used))
