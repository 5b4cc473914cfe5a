"""Collection of all the facts for a check. The GPUs are read first, before any process uses them."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shoestring.base.errors import RunError
from shoestring.base.packages.requirements import required
from shoestring.hardware import probe, targets
from shoestring.hardware.catalog import Target
from shoestring.hardware.occupancy import Driver, occupancy
from shoestring.recipe.finding import HUGGING_FACE
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.requirements import required_extras
from shoestring.runs.check import build, disk, host, inputs, network, run_lock
from shoestring.runs.check.facts import Facts


def collect_facts(on: str, run: Path, loaded: LoadedRecipe | None = None) -> Facts:
    """Collect the facts for a run of `loaded` in the directory `run` under the target `on`.

    Raises UsageError for an unknown target.
    """
    driver, driver_error = _read_driver()
    target = _find_target(on)
    with ThreadPoolExecutor() as executor:
        # The probes of the build and of the hosts mostly wait; the disk is tested meanwhile.
        pending_build, pending_hosts = executor.submit(build.probe_build), executor.submit(network.probe_hosts)
        disk_facts = disk.probe_disk(run)
        clock, machine = host.read_clock(), host.inspect_host()
        recipe_inputs = inputs.inspect_inputs(loaded.paths) if loaded else ()
        platform = probe.platform_here()
        return Facts(
            target=target,
            is_local=on in targets.PROBED or target.name in targets.PROBED,
            driver=driver,
            driver_error=driver_error,
            build=pending_build.result(),
            host=machine,
            disk=disk_facts,
            clock=clock,
            platform=platform if platform.sign else None,
            internet=pending_hosts.result(),
            mounted=inputs.mounted_data_sets(),
            inputs=recipe_inputs,
            packages=required(required_extras(loaded) if loaded else ()),
            recipe=loaded.name if loaded else "",
            needs_hub=bool(loaded) and _is_hub_model(loaded),
            run_lock=run_lock.inspect_lock(run),
            processes={name: os.environ[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE") if name in os.environ},
        )


def _read_driver() -> tuple[Driver | None, str]:
    try:
        return occupancy(), ""
    except RunError as error:
        return None, error.message


def _find_target(on: str) -> Target:
    """Return the target; this machine's CPU if the driver does not answer, which has a finding of its own."""
    try:
        target = targets.find(on)
        # The machine itself if it has the device of a file; otherwise the checks compare the two.
        return targets.on_this_machine(on) if target.device.measured and _is_here(target) else target
    except RunError:
        return probe.local_cpu()


def _is_here(target: Target) -> bool:
    return target.device.kind == "cpu" or target.device.title == probe.local().device.title


def _is_hub_model(loaded: LoadedRecipe | None) -> bool:
    source = loaded.name.removeprefix(HUGGING_FACE) if loaded and loaded.name.startswith(HUGGING_FACE) else ""
    return bool(source) and not Path(source).exists()
