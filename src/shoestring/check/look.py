"""All the facts of a check, gathered: what takes long at the same time, the GPUs before anything uses one."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shoestring.check import build, holding, host, inputs, packages, reaching, writing
from shoestring.check.facts import Facts
from shoestring.errors import RunError
from shoestring.hardware import probe, targets
from shoestring.hardware.catalog import Target
from shoestring.hardware.occupancy import Driver, occupancy
from shoestring.recipe.finding import BUILT_IN, HUGGING_FACE
from shoestring.recipe.options import LoadedRecipe


def look(on: str, run: Path, loaded: LoadedRecipe | None = None) -> Facts:
    """The facts for a run in `run` of `loaded` under the target `on`.

    Raises UsageError for an unknown target.
    """
    driver, driver_error = _driver()
    target = _target(on)
    with ThreadPoolExecutor() as together:
        # The build and the hosts mostly wait, the disk is written to meanwhile.
        asked_build, asked_hosts = together.submit(build.look), together.submit(reaching.reach)
        disk = writing.write(run)
        clock, machine = host.clock(), host.look()
        found = inputs.look(loaded.paths) if loaded else ()
        platform = probe.platform_here()
        return Facts(
            on=target,
            probed=on in targets.PROBED,
            driver=driver,
            driver_error=driver_error,
            build=asked_build.result(),
            host=machine,
            disk=disk,
            clock=clock,
            platform=platform if platform.sign else None,
            internet=asked_hosts.result(),
            mounted=inputs.mounted(),
            inputs=found,
            packages=packages.needed(_extras(loaded) if loaded else ()),
            recipe=loaded.name if loaded else "",
            needs_hub=bool(loaded) and _on_the_hub(loaded),
            holding=holding.look(run),
            processes={name: os.environ[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE") if name in os.environ},
        )


def _driver() -> tuple[Driver | None, str]:
    try:
        return occupancy(), ""
    except RunError as error:
        return None, error.message


def _target(on: str) -> Target:
    """The target; this machine's CPU where its driver does not answer, which is a line of its own."""
    try:
        return targets.find(on)
    except RunError:
        return probe.local_cpu()


def _extras(loaded: LoadedRecipe) -> set[str]:
    """The extras that a recipe with these options needs."""
    wanted = {loaded.name} if loaded.name in BUILT_IN else set()
    if loaded.name.startswith(HUGGING_FACE):
        wanted.add("huggingface")
    adaptation = loaded.adaptation
    if adaptation.lora_r is not None:
        wanted.add("huggingface")  # it brings peft
    if adaptation.quantization != "none" or adaptation.optimizer_states != "own":
        wanted.add("bitsandbytes")
    return wanted


def _on_the_hub(loaded: LoadedRecipe | None) -> bool:
    source = loaded.name.removeprefix(HUGGING_FACE) if loaded and loaded.name.startswith(HUGGING_FACE) else ""
    return bool(source) and not Path(source).exists()
