"""The page of a run's directory."""

from docs.generate.markdown import code, header, table

from shoestring.training.run_directory.contents import ENTRIES, Entry

_INTRODUCTION = """
A run is its directory and nothing else. To continue on [another machine](index.md#continue-on-another-machine),
copy the directory and type the same `train` command; paths in options, such as `data`, may differ.

## Files
"""
_REMARKS = """
A file that is being written has a name that begins with a dot. What a kill leaves of it, the next session removes.
Files under other names belong to the user and are left alone, such as `.git/` and `.env`. A folder of the table in
which another disk is mounted is not removed either.

## Which run a file is of
A run gets a random id when it begins: `run` in `plan.json`. The manifests of `checkpoints/`, `best/`, `light/` and
`preprocessing/` have it too, with the recipe and the options that the run was started with. `state.json`,
`backup.json` and the event `session` have the id alone. Copies of a run, its backups and its sessions on Kaggle keep
the id, and each fold of a cross-validation is a run of its own. Every command that reads a run compares these ids
first: a file of another run is an error that names the file, both ids and the options that differ. Weights in a folder
without `manifest.json` are your own and name no run. The files with weights have no id, so equal runs have equal
weights, byte for byte.

A run of an earlier version gets its id when it is continued, which a note says once. Its files up to that update
(`named_at` in `plan.json`) count as its own.

## What you publish with a run
`plan.json`, `run.toml` and the manifests of `checkpoints/`, `best/`, `light/` and `preprocessing/` have the options of
the run, and so the paths of its data on your machine; `events.jsonl` has the notes of the recipe. Publish an export
instead: its files have at most the last names of such paths, no manifest in it names the run, and an ONNX graph has no
lines of your code. What a recipe itself writes into an export is up to the recipe.

Copies by `--backup` are the whole run. Repositories and datasets that it creates are private; an existing repository
stays as public as it is.

## What a run stores
The recipe, its options and the settings are stored in the run, so continuing needs no `--set`. Other options are
refused, and other settings that decide the bits need `--allow-inexact`; they are then stored in place of the earlier
ones. `--limit`, `--disk`, and another setting or data path that differs from the stored one are not stored: repeat them
in each session. A command that is refused leaves the run as it was.

## Runs from someone else
`evaluate`, `predict`, `export` and `replay` execute a recipe file only if the command names it (`--recipe`), or if you
have trained with it, and with the files beside it that it imports, on this machine: `train` writes their digests to
`$XDG_STATE_HOME/shoestring/trusted.json` (by default below `~/.local/state`). A recipe of an installed package is used
if the distribution and its version are those in `plan.json`, or if the command names the recipe. Links in a run's
directory are not followed under any name of the table; the directory itself may be a link. `plan.json` and the lines of
`events.jsonl` have digests, the event `stop` has that of `state.json`, and a file that has changed is reported.
"""


def page() -> str:
    """Return the page with a row for each file and folder."""
    rows = [(_path(entry), entry.content) for entry in ENTRIES]
    return header("A run's directory") + _INTRODUCTION.lstrip("\n") + "\n" + table(("path", "content"), rows) + _REMARKS


def _path(entry: Entry) -> str:
    return code(f"{entry.name}/" if entry.is_folder else entry.name)
