"""What a child process has printed: the part of it that is a reason."""


def error_in(text: str) -> str:
    """Return the last error message that was printed, with its problems and its hint; empty if there is none."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    return "\n".join(lines[starts[-1] :]).removeprefix("error: ").strip()[:4000] if starts else ""


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing was printed")[:2000]
