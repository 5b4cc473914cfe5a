"""Which CUDA libraries the shared objects of a Python environment need, and which symbols of them.

CUDA's libraries version their symbols, so a library in place of one must define the same names with the same version.
Read with binutils' `readelf` and `nm`, which every C++ compiler on Linux comes with.
"""

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoestring.base.errors import RunError

_CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)\w*\.so")
"""The file names of CUDA's libraries and those that come with it."""
_CUDA_SYMBOL = re.compile(r"(_*cu[A-Z_a-z]|nvrtc|nvJitLink|nvshmem|nccl|nvtx)")

_UNVERSIONED = (
    ("cuFile", "libcufile.so"),
    ("cusparseLt", "libcusparseLt.so"),
    ("nccl", "libnccl.so"),
    ("nvshmem", "libnvshmem_host.so"),
    ("nvJitLink", "libnvJitLink.so"),
    ("nvtx", "libnvToolsExt.so"),
    ("cupti", "libcupti.so"),
    ("nvrtc", "libnvrtc.so"),
    ("cu", "libcuda.so"),
)
"""The libraries whose symbols have no versions, by the beginning of their symbols' names."""


@dataclass(frozen=True, kw_only=True)
class CudaLibrary:
    """What the shared objects of an environment need of one of CUDA's libraries."""

    name: str
    """Its file name, which the dynamic linker looks for, such as `libcudart.so.13`."""
    version: str
    """The version of its symbols; empty if they have none."""
    symbols: frozenset[str]


def needed_libraries(objects: Iterable[Path]) -> dict[str, CudaLibrary]:
    """Return the CUDA libraries that these shared objects need, by name.

    Raises RunError if binutils are missing or an object cannot be read.
    """
    names: set[str] = set()
    versions: dict[str, str] = {}
    versioned: dict[str, set[str]] = {}
    plain: set[str] = set()
    for path in objects:
        names.update(name for name in _needed_names(path) if _CUDA_LIBRARY.match(name))
        library_of_version = _libraries_of_versions(path)
        for symbol, version in _undefined(path):
            library = library_of_version.get(version, "")
            if version and _CUDA_LIBRARY.match(library):
                versions[library] = version
                versioned.setdefault(library, set()).add(symbol)
            elif not version and _CUDA_SYMBOL.match(symbol):
                plain.add(symbol)
    names.update(versioned)
    for symbol in plain:
        if name := _library_of(symbol, names):
            versioned.setdefault(name, set()).add(symbol)
    return {
        name: CudaLibrary(name=name, version=versions.get(name, ""), symbols=frozenset(versioned.get(name, ())))
        for name in sorted(names)
    }


def _library_of(symbol: str, names: Iterable[str]) -> str | None:
    prefix = next((library for start, library in _UNVERSIONED if symbol.startswith(start)), None)
    return next((name for name in sorted(names) if prefix and name.startswith(f"{prefix}.")), None)


def _needed_names(path: Path) -> list[str]:
    return re.findall(r"NEEDED.*\[(.+)\]", _output("readelf", "--dynamic", path))


def _libraries_of_versions(path: Path) -> Mapping[str, str]:
    """Return the library that each version of an undefined symbol belongs to."""
    libraries = {}
    for library, versions in re.findall(
        r"File: (\S+) .*\n((?:.*Name: .*\n)+)", _output("readelf", "--wide", "--version-info", path)
    ):
        libraries.update(dict.fromkeys(re.findall(r"Name: (\S+)", versions), library))
    return libraries


def _undefined(path: Path) -> list[tuple[str, str]]:
    """Return the undefined symbols with their versions, which may be empty."""
    lines = _output("nm", "--dynamic", "--undefined-only", "--with-symbol-versions", path).splitlines()
    pairs = [line.split()[-1].partition("@") for line in lines if line.split()]
    return [(symbol, version.lstrip("@")) for symbol, _, version in pairs]


def _output(program: str, *arguments: str | Path) -> str:
    command = [program, *map(str, arguments)]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout
    except FileNotFoundError as error:
        message = f"{program} is not installed, which tells the symbols that PyTorch needs of CUDA's libraries"
        raise RunError(message, hint="install binutils and a C++ compiler: apt-get install g++") from error
    except subprocess.CalledProcessError as error:
        raise RunError(f"{program} cannot read {arguments[-1]}: {error.stderr.strip()[:300]}") from error
