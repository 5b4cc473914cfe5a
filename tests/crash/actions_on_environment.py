"""Clocks that jump, and environments that change between the sessions of a run."""

DAY = 86_400
JUMPS = (7, -7, 3600, -3600, DAY, -DAY, 400 * DAY, -400 * DAY)
"""In seconds."""


def variables(**values):
    """Start Python anew with these environment variables; None removes one."""

    def prepare(session, generator):
        session.fresh = True
        session.variables.update(values)
        session.reached.update(name for name in session.names if name.startswith("environment"))

    return prepare


def temporary_folder(session, generator):
    folder = session.folder / "TMPDIR"
    kind = generator.choice(("missing", "file", "not UTF-8", "two lines", "long"))
    if kind == "file":
        folder.write_text("")
    elif kind == "not UTF-8":
        folder = folder.with_name("TMPDIR \udcff")
    elif kind == "two lines":
        folder = folder.with_name("TMPDIR\n'")
    elif kind == "long":
        folder = folder / ("long" * 30)
    if kind not in ("missing", "file"):
        folder.mkdir(parents=True)
    session.variables["TMPDIR"] = str(folder)
    session.reached.add("environment: TMPDIR")


def other_clock(session, generator):
    """All processes of the session have another wall clock from the start."""
    set_clock(session, generator.choice(JUMPS))
    session.reached.add("another wall clock")


def unchanged_clock(session, generator):
    set_clock(session, 0)


def jump(session, generator):
    """The wall clock of all processes of the session jumps, and jumps again."""
    set_clock(session, generator.choice(JUMPS))
    if session.alive():
        session.reached.add("wall clock jumps")
    yield generator.uniform(0.1, 1)
    set_clock(session, generator.choice((0, *JUMPS)))


def set_clock(session, seconds):
    session.clock.with_suffix(".new").write_text(str(seconds))
    session.clock.with_suffix(".new").replace(session.clock)
    session.variables["WALL_CLOCK"] = str(session.clock)
