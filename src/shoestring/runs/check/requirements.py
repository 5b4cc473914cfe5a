"""Checks of what the request requires: packages, inputs, internet access, the quota and the run's directory."""

from shoestring.base.packages.requirements import parse_version, remedy
from shoestring.base.packages.tested import TESTED
from shoestring.hardware.images import ImageAnswer, image_answer
from shoestring.runs.check.facts import Facts
from shoestring.runs.check.finding import Finding, failed, passed, warned
from shoestring.runs.check.network import HUB, PYPI


def check_packages(facts: Facts) -> Finding | None:
    """Check that the required packages are installed in a supported version."""
    unusable = [package for package in facts.packages if package.problem]
    if unusable:
        hint = remedy(unusable)
        if facts.internet.get(PYPI):
            hint += f"; {PYPI} is unreachable, so install from mounted wheels: pip install --no-index --find-links DIR"
        return failed("packages", "; ".join(package.problem_text for package in unusable), hint)
    if not facts.packages:
        return warned("packages", "shoestring is not installed, so its requirements are unknown", "pip install .")
    requirer = f"shoestring and {facts.recipe} require" if facts.recipe else "shoestring requires"
    return passed("packages", f"all packages that {requirer} are installed")


def image_of(facts: Facts) -> ImageAnswer | None:
    """Return what the image of the target's platform lacks; None in its own sessions: `packages` says it there."""
    platform = facts.target.platform
    if platform is None or (facts.platform and facts.platform.name == platform.name):
        return None
    return image_answer(platform.name, facts.packages)


def check_image(facts: Facts) -> Finding | None:
    """Report what the image of the target's platform lacks. That is no warning: a session brings it."""
    answer = image_of(facts)
    return passed("image", answer.text) if answer else None


def check_versions(facts: Facts) -> Finding | None:
    """Check that the packages on which results may depend have tested versions."""
    installed = {
        package.name: package.installed
        for package in facts.packages
        if package.name in TESTED and package.installed and not package.problem
    }
    untested = {name: version for name, version in installed.items() if not _is_tested(name, version)}
    if not installed:
        return None
    if untested:
        message = ", ".join(
            f"{name} {version} (tested: {', '.join(TESTED[name])})" for name, version in untested.items()
        )
        hint = "these versions should work; if they do not, install tested ones: pip install "
        hint += " ".join(f"{name}=={TESTED[name][-1]}" for name in untested)
        return warned("versions", message, hint)
    return passed(
        "versions", "tested versions: " + ", ".join(f"{name} {version}" for name, version in installed.items())
    )


def _is_tested(name: str, version: str) -> bool:
    """Return whether a version differs from a tested one at most in its last part, which corrects errors."""
    return parse_version(version)[:2] in {parse_version(tested)[:2] for tested in TESTED[name]}


def check_inputs(facts: Facts) -> Finding | None:
    """Check that the input paths in the options can be read, and suggest other paths if not."""
    name = "inputs"
    problems = [recipe_input for recipe_input in facts.inputs if recipe_input.problem]
    if problems:
        message = "; ".join(
            f"{recipe_input.option}={recipe_input.path} {recipe_input.problem}" for recipe_input in problems
        )
        suggestions = [
            f"--set {recipe_input.option}={recipe_input.alternatives[0]}"
            for recipe_input in problems
            if recipe_input.alternatives
        ]
        mounted = ", ".join(map(str, facts.mounted[:5]))
        hint = " ".join(suggestions) or (
            f"choose one of the mounted data sets: {mounted}"
            if mounted
            else "upload or mount it: no file or folder of that name was found elsewhere"
        )
        return failed(name, message, hint)
    if facts.platform and facts.platform.name == "kaggle" and not facts.mounted:
        return warned(name, "no data set is mounted", "add one to the notebook (Add Input), or to dataset_sources")
    if facts.inputs:
        return passed(name, ", ".join(f"{recipe_input.option}={recipe_input.path}" for recipe_input in facts.inputs))
    if facts.mounted:
        return passed(name, "mounted data sets: " + ", ".join(map(str, facts.mounted[:5])))
    return passed(name, f"{facts.recipe} needs no input files") if facts.recipe else None


def check_internet(facts: Facts) -> Finding | None:
    """Check which hosts are reachable, and name what does not work without them."""
    name = "internet"
    unreachable = {host: reason for host, reason in facts.internet.items() if reason}
    purposes = {HUB: "models and data sets from the hub", PYPI: "pip install"}
    if facts.host.environment.get("HF_HUB_OFFLINE") in ("1", "true", "yes", "on") and facts.needs_hub:
        return failed(
            name,
            "HF_HUB_OFFLINE is set, but the recipe is the name of a model on the hub",
            "unset it, or use hf:path/to/config.json",
        )
    if not unreachable:
        return passed(name, ", ".join(facts.internet) + " are reachable")
    message = "; ".join(
        f"{host}, needed for {purposes.get(host, host)}, is unreachable: {reason}"
        for host, reason in unreachable.items()
    )
    is_kaggle = facts.platform and facts.platform.name == "kaggle"
    enable = "turn on Internet in the notebook's Settings, or " if is_kaggle else ""
    if HUB in unreachable and facts.needs_hub:
        return failed(name, message, f"{enable}use hf:path/to/config.json with files on this machine")
    return warned(name, message, f"{enable}mount weights and wheels as inputs; training itself needs no internet")


def check_quota(facts: Facts) -> Finding | None:
    """Report the platform's weekly quota.

    The remaining quota is unknown: no platform reports it to a session without an account's key, which a session
    should not have.
    """
    platform = facts.target.platform or facts.platform
    if platform is None or platform.weekly_gpu_hours is None:
        return None
    return passed(
        "quota",
        f"{platform.title}: {platform.weekly_gpu_hours:g} h per week; a session cannot see how much remains",
        "see it at https://www.kaggle.com/settings, or on a machine with your account's key: kaggle quota",
    )


def check_run(facts: Facts) -> Finding | None:
    """Check that no other process holds the run's lock."""
    lock = facts.run_lock
    if lock is None or not (lock.locked or lock.holder):
        return None
    holder = lock.holder or "another process"
    if not lock.locked:
        return passed(
            "run", f"{lock.run} is not locked; its last process ({holder}) did not exit cleanly, which does no harm"
        )
    status_text = {
        "zombie": "; that process is dead, but its parent has not reaped it",
        "stopped": "; that process is stopped and may continue",
    }.get(lock.process_status, "")
    pid = holder.split()[1] if holder.startswith("pid ") else "PID"
    return failed(
        "run",
        f"{lock.run} is locked by {holder}{status_text}",
        f"wait for it, or end it so that it saves: kill {pid}; it may belong to a notebook kernel that was restarted",
    )
