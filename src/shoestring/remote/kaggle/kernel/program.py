"""One session of a training run, sent by `shoestring kaggle start`.

It installs Shoestring from the attached dataset, copies the run that the session before left, trains until shortly
before the session's limit, and leaves what the next session (or your laptop) needs to go on, in /kaggle/working:

    shoestring-session.json   what has become of this session: finished, paused or failed, and why
    shoestring.log            the end of what was printed
    run/                      the run: copy it anywhere, and `shoestring train` continues it

CONFIG above says what to train. The script ends with exit status 0 also if training failed, because Kaggle may drop the
output of a script that does not. Until Shoestring is installed, only the standard library is used.
"""

import base64
import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(os.environ.get("SHOESTRING_KAGGLE_ROOT", "/kaggle"))
INPUT, WORKING, TEMP = ROOT / "input", ROOT / "working", ROOT / "temp"
RUN, RECIPE_FILES = WORKING / "run", TEMP / "recipe-files"
# dill, which datasets uses, takes modules elsewhere for the user's own, saves them whole, and fails at pyarrow.
SITE = TEMP / "site-packages"
SESSION_FILE, LOG_FILE, PACKAGE_FILE = "shoestring-session.json", "shoestring.log", "shoestring-package.json"

MIB = 2**20
LOG_BYTES = MIB
MAX_FILES = 400  # in the output: the official client has stopped at 500
PROBE_BYTES = 4 * MIB
KNOWN_CAPABILITY = (7, 5)  # that of a T4: for this one and later ones every build of torch has kernels
SECONDS_TO_STOP = 30  # for a trainer that is asked to end, before it is killed

# What a run consists of. Nothing else of an earlier output is copied, so it cannot bring code or links along.
RUN_FILES = {"plan.json", "state.json", "run.toml", "events.jsonl", "ledger.json", "report.html"}
RUN_FOLDERS = {"checkpoints", "light", "best", "preprocessing", "evidence", "logs"}
CODE = {".py", ".pyc", ".pyd", ".so", ".pth", ".pkl", ".pickle"}
CHECKPOINT = re.compile(r"update-([0-9]{8,18})")
UNDONE_REPLACEMENT = re.compile(r"\.replaced-[0-9]{8,18}")


class SessionError(Exception):
    """The session cannot go on; the text says why, and `hint` what to do."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


class Stopped(BaseException):
    """Kaggle asked the script to end."""


def main(config: dict[str, Any]) -> None:
    session = Session(config)
    with contextlib.suppress(ValueError):  # of another thread than the main one, at which no signal arrives
        signal.signal(signal.SIGTERM, session.stop)
    try:
        WORKING.mkdir(parents=True, exist_ok=True)
        session.write()
        TEMP.mkdir(parents=True, exist_ok=True)
        session.run()
    except SessionError as error:
        session.record(status="failed", reason=str(error), hint=error.hint)
    except Stopped:
        session.record(status="paused", reason="Kaggle ended the session before training began")
    except BaseException as error:
        session.log(traceback.format_exc())
        session.record(status="failed", reason=f"the script of the session failed: {type(error).__name__}: {error}")
    session.is_leaving = True
    try:
        session.leave()
    except BaseException:  # the output that is there counts, and so does exit status 0
        session.log(traceback.format_exc())
        with contextlib.suppress(BaseException):
            session.record(notes=[*session.state["notes"], "the output could not be pruned, see shoestring.log"])
            session.write()


class Session:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.started = time.monotonic()
        self.trainer: subprocess.Popen[bytes] | None = None
        self.is_stopped = False
        self.is_leaving = False
        self.state = {
            "format": 1,
            "nonce": config["nonce"],
            "session": config["session"],
            "status": "running",
            "reason": "",
            "hint": "",
            "update": 0,
            "total_updates": None,
            "first_update": 0,
            "checkpoint": None,
            "damaged": [],
            "notes": [],
            "exit_status": None,
            "seconds": 0.0,
            "facts": {},
            "files": {},
        }

    def run(self) -> None:
        self.state["facts"] = facts(internet=self.config["internet"] and has_internet())
        self.state["facts"]["disk_free_bytes"] = self.probe_disk()
        if self.config.get("needs_gpu") and not self.state["facts"]["gpus"]:
            raise SessionError(
                "Kaggle gave this session no GPU, so nothing was trained",
                "verify the account's phone number on www.kaggle.com/settings, see whether GPU quota is left, and "
                "start again; or shoestring kaggle start --allow-cpu with another --run trains on the CPU all the same",
            )
        self.require_kernels()
        package = self.find_package()
        self.install(package)
        installed = {item.name: item.version for item in importlib.metadata.distributions(path=[str(SITE)])}
        self.state["facts"]["shoestring"] = installed.pop("shoestring")
        self.state["facts"]["brought"] = installed
        recipe = self.unpack_recipe()
        if self.config["previous"]:
            self.copy_previous()
        self.train(recipe)

    def require_kernels(self) -> None:
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

    # --- the session's file and its log ---

    def record(self, **values: Any) -> None:
        self.state.update(values)
        for name in ("status", "reason", "hint"):
            if values.get(name):
                self.log(f"{name}: {values[name]}\n")

    def write(self) -> None:
        """Write the session's file. If the disk is full, what is only looked at makes room for it."""
        try:
            self.replace_session_file()
        except OSError as error:
            self.state["notes"].append(f"the log and images were left out, because the disk failed: {error.strerror}")
            for folder in ("evidence", "logs"):
                shutil.rmtree(RUN / folder, ignore_errors=True)
            for path in (RUN / "report.html", WORKING / LOG_FILE):
                path.unlink(missing_ok=True)
            files = {name: entry for name, entry in self.state["files"].items() if (WORKING / name).is_file()}
            self.state["files"] = files
            self.replace_session_file()

    def replace_session_file(self) -> None:
        """Replace the session's file at once, so that a reader never sees half of it."""
        self.state["seconds"] = round(time.monotonic() - self.started, 3)
        temporary = WORKING / f".{SESSION_FILE}"
        with temporary.open("w") as file:
            json.dump(self.state, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(WORKING / SESSION_FILE)

    def log(self, text: str) -> None:
        print(text, end="", flush=True)
        self.append_to_log(text.encode(errors="replace"))

    def append_to_log(self, output: bytes) -> None:
        """Append to shoestring.log, and drop its beginning when it grows. A full disk does not end the training."""
        path = WORKING / LOG_FILE
        try:
            with path.open("ab") as file:
                file.write(output)
                size = file.tell()
            if size > 2 * LOG_BYTES:
                shorten(path, LOG_BYTES)
        except OSError:
            pass

    def stop(self, *_: object) -> None:
        """End the training, saved, when Kaggle asks the script to end."""
        self.is_stopped = True
        if self.trainer is not None:
            with contextlib.suppress(OSError):
                self.trainer.terminate()
        elif not self.is_leaving:
            raise Stopped

    def seconds_left(self) -> float:
        """Until the output has to be left."""
        return float(self.started + self.config["limit_seconds"] - self.config["hand_over_seconds"] - time.monotonic())

    # --- before training ---

    def probe_disk(self) -> int:
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
        return max(0, min(shutil.disk_usage(WORKING).free, int(self.config["output_bytes"]) - used))

    def find_package(self) -> Path:
        """Return the folder with the wheels, after verifying every one of them."""
        expected, problems = self.config.get("package_digest"), []
        for folder in folders_with(PACKAGE_FILE, self.config["package"]):
            try:
                listed = read_json(folder / PACKAGE_FILE)
                if expected and listed["digest"] != expected:
                    problems.append(f"{folder}: it is another version")
                    continue
                for name, entry in listed["files"].items():
                    if PurePosixPath(name).name != name or digest(folder / name) != (entry["bytes"], entry["sha256"]):
                        raise ValueError(f"{name} differs from its digest")
                return folder
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                problems.append(f"{folder}: {error}")
        raise SessionError(
            f"the wheels cannot be used: {'; '.join(problems) or 'their dataset is not mounted'}",
            f"see whether the dataset {self.config['package']} exists and is processed, then start again",
        )

    def install(self, package: Path) -> None:
        """Install Shoestring, the package of a recipe, and what the image lacks, beside the image and not into it."""
        wheels = sorted(package.glob("shoestring-*.whl"))
        if len(wheels) != 1:
            raise SessionError(f"{package} has {len(wheels)} wheels of Shoestring instead of one")
        shutil.rmtree(SITE, ignore_errors=True)
        self.pip(["--no-index", *map(str, [*wheels, *(package / name for name in self.config.get("wheels", ()))])])
        # A package that is installed now may need others in turn.
        for _ in range(10):
            missing = missing_requirements(self.config["extras"])
            if not missing:
                return
            self.log(f"missing here: {', '.join(missing)}\n")
            if any(re.match(r"torch(?![\w.-])", requirement) for requirement in missing):
                raise SessionError(
                    f"Kaggle's image has torch {installed_version('torch')}, but Shoestring needs {', '.join(missing)}",
                    "take a newer image: it is too large to be installed in each session",
                )
            absent = [requirement for requirement in missing if not self.install_wheel(package, requirement)]
            if absent and not self.config["internet"]:
                own = ".".join(map(str, sys.version_info[:2]))
                raise SessionError(
                    f"the session has no internet, and neither Kaggle's image (Python {own}) nor the dataset "
                    f"{self.config['package']} (wheels for Python {self.config['python']}) has {', '.join(absent)}",
                    "allow the internet for the session"
                    + (
                        ""
                        if own == self.config["python"]
                        else ", or upgrade Shoestring: its wheels are for an old image"
                    ),
                )
            if absent:
                self.pip(absent)
        raise SessionError(f"requirements are still missing: {', '.join(missing)}")

    def install_wheel(self, package: Path, requirement: str) -> bool:
        """Install a requirement from the dataset's wheels; return whether they have it for this Python."""
        try:
            self.pip(["--no-index", "--find-links", str(package), requirement])
        except SessionError:
            return False
        return True

    def pip(self, arguments: list[str]) -> None:
        # Without dependencies: pip would replace the image's torch, which takes gigabytes and its GPU build.
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        process = subprocess.run(
            [*command, "--upgrade", "--target", str(SITE), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment(),
            timeout=max(1, self.seconds_left()),
        )
        if process.returncode:
            text = process.stdout.decode(errors="replace")
            self.log(text)
            raise SessionError(f"pip could not install {' '.join(arguments)}: {last_line(text)}")

    def environment(self) -> dict[str, str]:
        """Return the environment of the children. Caches go to /kaggle/temp, because /kaggle/working is downloaded."""
        places = {"PIP_CACHE_DIR": "pip", "HF_HOME": "huggingface", "TORCH_HOME": "torch", "TRITON_CACHE_DIR": "triton"}
        places |= {"TORCHINDUCTOR_CACHE_DIR": "inductor", "XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "state"}
        places |= {"MPLCONFIGDIR": "matplotlib", "TMPDIR": "tmp"}
        (TEMP / "tmp").mkdir(parents=True, exist_ok=True)
        paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
        offline = {} if self.config["internet"] else {"HF_HUB_OFFLINE": "1"}
        return {**os.environ, **{name: str(TEMP / folder) for name, folder in places.items()}, **own, **offline}

    def unpack_recipe(self) -> str:
        """Write the recipe's files, and return the argument of `shoestring train`."""
        for name, content in self.config["files"].items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise SessionError(f"the recipe's file {name!r} has a path outside of its folder")
            data = zlib.decompress(base64.b64decode(content))
            if hashlib.sha256(data).hexdigest() != self.config["digests"].get(name):
                raise SessionError(f"the recipe's file {name!r} differs from its digest")
            (RECIPE_FILES / path).parent.mkdir(parents=True, exist_ok=True)
            (RECIPE_FILES / path).write_bytes(data)
        recipe = self.config["recipe"]
        return str(RECIPE_FILES / recipe) if recipe in self.config["files"] else recipe

    def copy_previous(self) -> None:
        """Copy the run that the session before left. Inputs are read-only, and a run is written to."""
        kernel, nonce = self.config["previous"]["kernel"], self.config["previous"]["nonce"]
        nonces = []
        for folder in folders_with(SESSION_FILE, kernel):
            try:
                left = read_json(folder / SESSION_FILE)
                nonces.append(str(left["nonce"])[:32])
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if left["nonce"] == nonce:
                break
        else:
            raise SessionError(
                f"the output of {kernel} that this session continues from "
                + (f"is of another session ({', '.join(nonces)} instead of {nonce})" if nonces else "is not mounted"),
                "nothing was trained; start again once Kaggle has the output",
            )
        shutil.rmtree(RUN, ignore_errors=True)
        listed = {} if left.get("status") == "running" else left.get("files") or {}
        damaged = list(self.copy_files(folder / "run", listed))
        answer = self.leaving("check", "--damaged", json.dumps(damaged))
        self.record(damaged=[*damaged, *(text for text in answer["damaged"] if text not in damaged)])
        for text in self.state["damaged"]:
            self.log(f"damaged on the way, and not used: {text}\n")
        if answer["update"] is None:
            raise SessionError(
                f"the output of {kernel} has no checkpoint that can be used: {answer['reason']}",
                "nothing was trained; continue from an earlier output",
            )
        self.record(first_update=answer["update"], update=answer["update"], checkpoint=answer["checkpoint"])
        self.write()

    def copy_files(self, source: Path, listed: dict[str, Any]) -> Iterator[str]:
        """Copy the files of a run, and yield what is damaged. Links and files that no run has are left out."""
        for path in run_files(source):
            name = path.relative_to(source).as_posix()
            if listed and not isinstance(listed.get(f"run/{name}"), dict):
                continue  # it is not of the session that left the output
            target = RUN / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                copied = digest(path, target)
            except (OSError, ValueError) as error:
                yield f"{name}: it cannot be read: {error}"
                continue
            if listed and copied != (listed[f"run/{name}"].get("bytes"), listed[f"run/{name}"].get("sha256")):
                yield f"{name}: it differs from the file that was left"
        for listed_name in listed:
            name = listed_name.removeprefix("run/")
            if name.startswith("checkpoints/") and not (source / name).is_file():
                yield f"{name}: it is missing"

    # --- training ---

    def train(self, recipe: str) -> None:
        limit = int(self.seconds_left())
        if limit < 1:
            raise SessionError("the session's limit was reached before training began", "give the session more time")
        command = [sys.executable, "-m", "shoestring", "train", recipe, "--run", str(RUN), "--on", self.config["on"]]
        options = dict(self.config["set"])
        for name, source in self.config["inputs"].items():
            options[name] = str(find_input(source["dataset"], source["path"]))
        for name, value in options.items():
            command += ["--set", f"{name}={value}"]
        command += ["--limit", f"{limit}s", *self.config["arguments"]]
        self.log(f"$ shoestring {' '.join(command[3:])}\n")
        # A group of its own, so that all its processes can be ended at once.
        self.trainer = trainer = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment(),
            cwd=TEMP,
            start_new_session=True,
        )
        if self.is_stopped:
            trainer.terminate()
        reader = threading.Thread(target=self.forward, args=(trainer.stdout,), daemon=True)
        reader.start()
        was_killed = self.wait_for_trainer(trainer)
        reader.join(5)
        state = {}
        with contextlib.suppress(OSError, ValueError):
            state = read_json(RUN / "state.json")
        status, code = state.get("status"), trainer.returncode
        printed = (WORKING / LOG_FILE).read_text(errors="replace") if (WORKING / LOG_FILE).is_file() else ""
        if was_killed:
            self.record(status="paused", reason="the trainer did not end in time and was killed")
        elif code == 0 and status in ("finished", "paused"):
            self.record(status=status, reason=str(state.get("reason", "")))
        else:
            end = f"signal {-code}" if code < 0 else f"exit status {code}"
            reason = error_in(printed) or (status == "failed" and state.get("reason")) or last_line(printed)
            exit_status = code if code >= 0 else None
            self.record(status="failed", reason=f"training ended with {end}: {reason}", exit_status=exit_status)

    def forward(self, stream: Any) -> None:
        """Print what the trainer prints, as it comes, and keep its end."""
        with stream:
            while output := stream.read1(65536):
                self.append_to_log(output)
                with contextlib.suppress(OSError):
                    print(output.decode(errors="replace"), end="", flush=True)

    def wait_for_trainer(self, trainer: "subprocess.Popen[bytes]") -> bool:
        """Wait for the trainer to end; return whether it had to be killed."""
        was_killed, stopping_since = False, None
        while trainer.poll() is None:
            time_now = time.monotonic()
            if stopping_since is None and (self.is_stopped or self.seconds_left() <= 0):
                stopping_since = time_now
                self.log("the trainer is asked to end\n")
                with contextlib.suppress(OSError):
                    trainer.terminate()
            if stopping_since is not None:
                # At the session's limit, most of the time that is kept belongs to the output.
                hand_over = self.config["hand_over_seconds"]
                if time_now - stopping_since > SECONDS_TO_STOP or self.seconds_left() < -hand_over / 4:
                    was_killed = True
                    break
            time.sleep(0.05)
        # Also after a regular end: none of its processes may go on while the output is left.
        with contextlib.suppress(OSError):
            os.killpg(trainer.pid, signal.SIGKILL)
        trainer.wait()
        return was_killed

    # --- what is left ---

    def leave(self) -> None:
        """Leave the smallest output that continues, and the list of its files."""
        if (RUN / "plan.json").is_file() and (SITE / "shoestring").is_dir():
            try:
                answer = self.leaving("prune", "--output-bytes", str(self.config["output_bytes"]))
                self.record(notes=[*self.state["notes"], *answer["notes"]])
                self.record(damaged=[*self.state["damaged"], *answer["damaged"]])
                if answer["update"] is not None:
                    self.record(update=answer["update"], checkpoint=answer["checkpoint"])
                self.record(total_updates=answer["total_updates"])
            except (SessionError, OSError, subprocess.SubprocessError) as error:
                self.record(notes=[*self.state["notes"], f"the output was not pruned: {error}"])
            if self.state["status"] == "finished":
                self.report()
        (RUN / "lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            shorten(WORKING / LOG_FILE, LOG_BYTES)
        self.limit_files()
        listed = {}
        for path in regular_files(WORKING):
            if path.name not in (SESSION_FILE, f".{SESSION_FILE}"):
                size, sha256 = digest(path)
                listed[path.relative_to(WORKING).as_posix()] = {"bytes": size, "sha256": sha256}
        self.state["files"] = listed
        self.write()

    def leaving(self, *arguments: str) -> dict[str, Any]:
        """Run a part of Shoestring that knows checkpoints, and return its answer."""
        process = subprocess.run(
            [sys.executable, "-m", "shoestring.remote.kaggle.kernel.leaving", arguments[0], str(RUN), *arguments[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self.environment(),
            cwd=TEMP,
            timeout=max(30, self.config["hand_over_seconds"]),
        )
        errors = process.stderr.decode(errors="replace")
        if process.returncode:
            self.log(errors)
            raise SessionError(f"the run's directory cannot be used: {last_line(errors)}")
        answer: dict[str, Any] = json.loads(process.stdout)
        return answer

    def report(self) -> None:
        """Write the run's page, if there is time."""
        seconds = self.seconds_left() + self.config["hand_over_seconds"] / 2
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [sys.executable, "-m", "shoestring", "report", str(RUN)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self.environment(),
                cwd=TEMP,
                timeout=max(5, min(120, seconds)),
            )

    def limit_files(self) -> None:
        """Drop what is only looked at if there are more files than the client downloads."""
        for folder in ("evidence", "logs"):
            if sum(1 for _ in regular_files(WORKING)) <= MAX_FILES - 2:
                return
            if (RUN / folder).is_dir():
                shutil.rmtree(RUN / folder, ignore_errors=True)
                self.record(notes=[*self.state["notes"], f"{folder}/ was left out: more than {MAX_FILES} files"])


# --- inputs: where they are mounted differs, so they are looked for ---


def folders_named(reference: str, inputs: Path = INPUT) -> Iterator[Path]:
    """Yield the folders that an input `owner/slug` may be mounted at, the likely ones first."""
    owner, slug = reference.split("/")
    for folder in (inputs / slug, *(inputs / kind / owner / slug for kind in ("datasets", "notebooks", "kernels"))):
        if folder.is_dir():
            yield folder


def find_input(dataset: str, path: str, inputs: Path = INPUT) -> Path:
    """Return where a path in a dataset is mounted. Raises SessionError if it is nowhere."""
    folders = list(folders_named(dataset, inputs))
    for folder in folders:
        # Kaggle may have a folder for the version in between.
        for place in (folder, *sorted(entry for entry in folder.iterdir() if entry.is_dir())):
            if (place / path).exists():
                return place / path
    raise SessionError(
        f"the dataset {dataset} has no {path}" if folders else f"the dataset {dataset} is not mounted",
        f"see whether the dataset is there, and what it has: https://www.kaggle.com/datasets/{dataset}",
    )


def folders_with(marker: str, reference: str) -> Iterator[Path]:
    """Yield the folders with the file `marker`: those named as the input, one below for its version, then any other."""
    places = set()
    for folder in [*folders_named(reference), INPUT]:
        depth = 4 if folder == INPUT else 1
        level = [folder]
        for _ in range(depth + 1):
            below = []
            for place in level[:1000]:
                if (place / marker).is_file() and not (place / marker).is_symlink():
                    if place not in places:
                        places.add(place)
                        yield place
                    continue
                with contextlib.suppress(OSError):
                    below += sorted(entry for entry in place.iterdir() if entry.is_dir())[:1000]
            level = below


def run_files(source: Path) -> Iterator[Path]:
    """Yield the regular files of a run."""
    for path in regular_files(source):
        first, *below = path.relative_to(source).parts
        if first == "checkpoints":
            if len(below) == 2 and (CHECKPOINT.fullmatch(below[0]) or UNDONE_REPLACEMENT.fullmatch(below[0])):
                yield path
        elif path.suffix not in CODE and first in (RUN_FOLDERS if below else RUN_FILES):
            yield path


def regular_files(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder; links are not followed, pipes and devices are left out."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            with contextlib.suppress(OSError):
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path


def read_json(path: Path, max_bytes: int = 64 * MIB) -> dict[str, Any]:
    """Return the content of a JSON file. Raises OSError, and ValueError for a file that is not one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            raise ValueError(f"{path.name} is not a file of at most {max_bytes} bytes")
        try:
            value = json.loads(file.read())
        except RecursionError:
            raise ValueError(f"{path.name} is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return value


def digest(path: Path, target: Path | None = None) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file, and copy it to `target` on the way."""
    sha256, size = hashlib.sha256(), 0
    with contextlib.ExitStack() as files:
        source = files.enter_context(os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb"))
        copy = files.enter_context(target.open("wb")) if target else None
        while block := source.read(8 * MIB):
            sha256.update(block)
            size += len(block)
            if copy:
                copy.write(block)
    return size, sha256.hexdigest()


# --- small things ---


def missing_requirements(extras: Iterable[str]) -> list[str]:
    """Return the requirements of Shoestring, of its `extras` and of what is in SITE, that are not installed."""
    # pip's own copy, so that versions are compared as pip does it; pip installs what is missing, so it is here.
    from pip._vendor.packaging.requirements import Requirement

    missing = {}
    for distribution in importlib.metadata.distributions(path=[str(SITE)]):
        is_own = distribution.name == "shoestring"
        for text in distribution.requires or ():
            requirement = Requirement(text)
            names = ("", *extras) if is_own else ("",)
            if requirement.marker and not any(requirement.marker.evaluate({"extra": name}) for name in names):
                continue
            version = installed_version(requirement.name)
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                missing[requirement.name] = f"{requirement.name}{requirement.specifier}"
    return sorted(missing.values())


def installed_version(name: str) -> str | None:
    """Return the version of a package that the children import; None if there is none."""
    for distribution in importlib.metadata.distributions(name=name, path=[str(SITE), *sys.path]):
        return distribution.version
    return None


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


def shorten(path: Path, size: int) -> None:
    """Keep the last `size` bytes of a file."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        if length <= size:
            return
        file.seek(length - size)
        end = file.read()
    path.write_bytes(end)


def error_in(text: str) -> str:
    """Return the last error message that was printed, with its problems and its hint; empty if there is none."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    return "\n".join(lines[starts[-1] :]).removeprefix("error: ").strip()[:4000] if starts else ""


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing was printed")[:2000]


if __name__ == "__main__":
    main(globals()["CONFIG"])
