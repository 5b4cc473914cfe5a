"""Shoestring and what the image lacks of its requirements, from the wheels of the attached dataset."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from shoestring.remote.kaggle.kernel.program.files import digest, read_json
from shoestring.remote.kaggle.kernel.program.inputs import folders_with
from shoestring.remote.kaggle.kernel.program.places import PACKAGE_FILE, SITE, SessionError
from shoestring.remote.kaggle.kernel.program.printed import last_line
from shoestring.remote.kaggle.kernel.program.session import Session


def find_package(session: Session) -> Path:
    """Return the folder with the wheels, after verifying every one of them."""
    expected, problems = session.config.get("package_digest"), []
    for folder in folders_with(PACKAGE_FILE, session.config["package"]):
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
        f"see whether the dataset {session.config['package']} exists and is processed, then start again",
    )


def install(session: Session, package: Path) -> None:
    """Install Shoestring, the package of a recipe, and what the image lacks, beside the image and not into it."""
    wheels = sorted(package.glob("shoestring-*.whl"))
    if len(wheels) != 1:
        raise SessionError(f"{package} has {len(wheels)} wheels of Shoestring instead of one")
    shutil.rmtree(SITE, ignore_errors=True)
    carried = [package / name for name in session.config.get("wheels", ())]
    pip(session, ["--no-index", *map(str, [*wheels, *carried])])
    # A package that is installed now may need others in turn.
    for _ in range(10):
        missing = missing_requirements(session.config["extras"])
        if not missing:
            return
        session.log(f"missing here: {', '.join(missing)}\n")
        if any(re.match(r"torch(?![\w.-])", requirement) for requirement in missing):
            raise SessionError(
                f"Kaggle's image has torch {installed_version('torch')}, but Shoestring needs {', '.join(missing)}",
                "take a newer image: it is too large to be installed in each session",
            )
        absent = [requirement for requirement in missing if not install_wheel(session, package, requirement)]
        if absent and not session.config["internet"]:
            own = ".".join(map(str, sys.version_info[:2]))
            raise SessionError(
                f"the session has no internet, and neither Kaggle's image (Python {own}) nor the dataset "
                f"{session.config['package']} (wheels for Python {session.config['python']}) has {', '.join(absent)}",
                "allow the internet for the session"
                + (
                    ""
                    if own == session.config["python"]
                    else ", or upgrade Shoestring: its wheels are for an old image"
                ),
            )
        if absent:
            pip(session, absent)
    raise SessionError(f"requirements are still missing: {', '.join(missing)}")


def install_wheel(session: Session, package: Path, requirement: str) -> bool:
    """Install a requirement from the dataset's wheels; return whether they have it for this Python."""
    try:
        pip(session, ["--no-index", "--find-links", str(package), requirement])
    except SessionError:
        return False
    return True


def pip(session: Session, arguments: list[str]) -> None:
    # Without dependencies: pip would replace the image's torch, which takes gigabytes and its GPU build.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    process = subprocess.run(
        [*command, "--upgrade", "--target", str(SITE), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=session.environment(),
        timeout=max(1, session.seconds_left()),
    )
    if process.returncode:
        text = process.stdout.decode(errors="replace")
        session.log(text)
        raise SessionError(f"pip could not install {' '.join(arguments)}: {last_line(text)}")


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
