"""Verdicts on what was asked: packages, inputs, what needs the internet, the quota, the run's directory."""

from shoestring.check.facts import Facts, Package
from shoestring.check.finding import Finding, failed, passed, warned
from shoestring.check.packages import TESTED, numbers
from shoestring.check.reaching import HUB, PYPI


def packages(facts: Facts) -> Finding | None:
    """What is needed is there, and not older than it may be."""
    problems = [each for each in facts.packages if _problem(each)]
    if problems:
        extras = sorted({each.extra for each in problems if each.extra})
        names = f"'shoestring[{','.join(extras)}]'" if extras else "shoestring"
        hint = f"pip install --upgrade {names}"
        if facts.internet.get(PYPI):
            hint += (
                f"; {PYPI} cannot be reached, so from wheels that are mounted: pip install --no-index --find-links DIR"
            )
        return failed("packages", ", ".join(f"{each.name} {_problem(each)}" for each in problems), hint)
    if not facts.packages:
        return warned("packages", "the project was never installed, so nobody knows what it needs", "pip install .")
    what = f"all that shoestring and {facts.recipe} need" if facts.recipe else "all that shoestring needs"
    return passed("packages", what)


def versions(facts: Facts) -> Finding | None:
    """How far from the tested versions those are on which results depend."""
    known = {each.name: each.installed for each in facts.packages if each.name in TESTED and each.installed}
    other = {name: seen for name, seen in known.items() if numbers(seen)[:2] != numbers(TESTED[name])[:2]}
    if not known:
        return None
    if other:
        said = ", ".join(f"{name} {seen} (tested: {TESTED[name]})" for name, seen in other.items())
        return warned("versions", said, "should work; where it does not, install the tested ones (constraints.txt)")
    return passed("versions", ", ".join(f"{name} {seen}" for name, seen in known.items()) + ", as tested")


def inputs(facts: Facts) -> Finding | None:
    """Paths that the options name, by looking."""
    name = "inputs"
    problems = [each for each in facts.inputs if each.problem]
    if problems:
        said = "; ".join(f"{each.option}={each.path}: {each.problem}" for each in problems)
        found = [f"--set {each.option}={each.elsewhere[0]}" for each in problems if each.elsewhere]
        there = ", ".join(map(str, facts.mounted[:5]))
        hint = " ".join(found) or (
            f"mounted are {there}" if there else "nothing of that name was found elsewhere either"
        )
        return failed(name, said, hint)
    if facts.platform and facts.platform.name == "kaggle" and not facts.mounted:
        return warned(name, "no data set is mounted", "add one to the notebook (Add Input), or to dataset_sources")
    if facts.inputs:
        return passed(name, ", ".join(f"{each.option}={each.path}" for each in facts.inputs))
    if facts.mounted:
        return passed(name, "mounted: " + ", ".join(map(str, facts.mounted[:5])))
    return passed(name, f"{facts.recipe} reads what it brings along") if facts.recipe else None


def internet(facts: Facts) -> Finding | None:
    """Which hosts answer, and what cannot work without them."""
    name = "internet"
    away = {host: why for host, why in facts.internet.items() if why}
    cannot = {HUB: "models and data sets by their names on the hub", PYPI: "pip install"}
    if facts.host.environment.get("HF_HUB_OFFLINE") in ("1", "true", "yes", "on") and facts.needs_hub:
        return failed(
            name, "HF_HUB_OFFLINE is set and the recipe is a name on the hub", "unset it, or hf:path/to/config.json"
        )
    if not away:
        return passed(name, ", ".join(facts.internet) + " answer")
    said = "; ".join(f"no {cannot.get(host, host)}: {host} {why}" for host, why in away.items())
    on = "switch Internet on in the notebook's Settings; " if facts.platform and facts.platform.name == "kaggle" else ""
    if HUB in away and facts.needs_hub:
        return failed(name, said, f"{on}hf:path/to/config.json of files that are here")
    return warned(name, said, f"{on}otherwise mount weights and wheels as inputs; a run itself needs no internet")


def quota(facts: Facts) -> Finding | None:
    """No platform tells a session its own quota without an account's key, which a session should not have."""
    platform = facts.on.platform or facts.platform
    if platform is None or platform.weekly_gpu_hours is None:
        return None
    return passed(
        "quota",
        f"{platform.title}: {platform.weekly_gpu_hours:g} h a week; what is left, a session is not told",
        "see it at https://www.kaggle.com/settings, or where the client has your account: kaggle quota",
    )


def run(facts: Facts) -> Finding | None:
    """Nobody else is at the run's directory."""
    found = facts.holding
    if found is None or not (found.held or found.holder):
        return None
    who = found.holder or "another process"
    if not found.held:
        return passed("run", f"{found.run} is free; {who} left it without a word, which does no harm")
    odd = {
        "zombie": "; it is dead, and whoever started it has not noticed",
        "stopped": "; it was stopped and would go on",
    }.get(found.state, "")
    pid = who.split()[1] if who.startswith("pid ") else "PID"
    return failed(
        "run",
        f"{found.run} is held by {who}{odd}",
        f"wait for it, or end it so that it saves: kill {pid}; a notebook's kernel that was restarted may have left it",
    )


def _problem(package: Package) -> str:
    if not package.installed:
        return "is not installed"
    if package.least and numbers(package.installed) < numbers(package.least):
        return f"is {package.installed}, needed is {package.least}"
    return ""
