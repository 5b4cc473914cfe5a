"""What the faults do to files between sessions: those of somebody else, and those of another run of the same recipe."""

import shutil
from pathlib import Path

from tests.crash import foreign_files
from tests.crash.schedule import CHECKPOINT, newest_checkpoint

# Files of somebody else


def plant_hidden(session, generator):
    plant(session, session.run, generator, foreign_files.HIDDEN)


def plant_visible(session, generator):
    plant(session, session.run, generator, foreign_files.HIDDEN + foreign_files.VISIBLE)


def plant_beside_checkpoints(session, generator):
    plant(session, session.run, generator, foreign_files.IN_CHECKPOINTS)


def plant_beside_copies(session, generator):
    plant(session, session.place, generator, foreign_files.HIDDEN + foreign_files.VISIBLE)


def plant(session, folder, generator, names):
    folder.mkdir(exist_ok=True)
    session.plant(foreign_files.plant(folder, session.outside, generator, names=names))
    session.reached.update(name for name in session.names if name.startswith("foreign files"))


def lose_machine(session, generator):
    """The run's directory is gone with its machine; the next one may have hidden files of its user in its place."""
    shutil.rmtree(session.run)
    session.planted = {name: fact for name, fact in session.planted.items() if not is_below(name, session.run)}
    if generator.random() < 0.7:
        session.run.mkdir()
        session.plant(foreign_files.plant(session.run, session.outside, generator, names=foreign_files.HIDDEN))
    session.reached.add("lost machine")


# Files of another run, with another seed


def mix(session, source, target):
    """Put a copy of another run's file or folder in the place of one of this run."""
    session.replace(source, target)
    session.reached.update(name for name in session.names if name.endswith("of another run"))


def mix_file(name):
    def prepare(session, generator):
        mix(session, session.other_run() / name, session.run / name)

    return prepare


def mix_newer_checkpoint(session, generator):
    newer = [path for path in checkpoints_of(session.other_run()) if path.name > newest_name(session.run)]
    source = generator.choice(newer)
    mix(session, source, session.run / "checkpoints" / source.name)


def mix_same_checkpoint(session, generator):
    name = generator.choice(common_checkpoints(session))
    mix(session, session.other_run() / "checkpoints" / name, session.run / "checkpoints" / name)


def common_checkpoints(session):
    """Return the names of the run's checkpoints that another run has as well: those of its regular saves."""
    names = [path.name for path in checkpoints_of(session.run)]
    return [name for name in names if int(name[7:]) % session.configuration.interval == 0]


def is_below(name, folder):
    return Path(name).is_relative_to(folder)


def move_run(session, generator):
    target = session.run.with_name(f"{session.run.name}-moved")
    shutil.move(session.run, target)
    session.planted = {
        str(target / Path(name).relative_to(session.run)) if is_below(name, session.run) else name: fact
        for name, fact in session.planted.items()
    }
    session.run = target
    session.reached.add("moved directory")


def checkpoints_of(run):
    return sorted((run / "checkpoints").glob(CHECKPOINT))


def newest_name(run):
    return f"update-{newest_checkpoint(run)[0]:08}"
