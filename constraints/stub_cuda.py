"""Make stand-ins of CUDA's libraries for a PyTorch that is used on a machine without a GPU: python stub_cuda.py

PyTorch's default wheels refer to 3 GB of `nvidia-*` packages and do not load without them, though nothing of them is
called where no GPU is found. Each library that is missing becomes a small one beside PyTorch's own, with the symbols
that PyTorch's libraries name, all of which answer as CUDA's own do without a driver. A CPU build needs none, and a
machine with a GPU must not have them. It needs gcc and binutils.
"""

import re
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver
MESSAGE = "CUDA driver version is insufficient for CUDA runtime version"
ANSWERS = {
    "cudaDriverGetVersion": "int cudaDriverGetVersion(int *version) { *version = 0; return 0; }",
    "cudaGetErrorString": f'const char *cudaGetErrorString(int error) {{ return "{MESSAGE}"; }}',
    "cudaGetErrorName": 'const char *cudaGetErrorName(int error) { return "cudaErrorInsufficientDriver"; }',
}
CUDA = re.compile(r"lib(cu|nv|nccl)")  # the names of its libraries


def main() -> None:
    """Write the missing libraries into the folder of PyTorch's own."""
    folder = Path(find_spec("torch").origin).parent / "lib"
    libraries = sorted(folder.glob("*.so*"))
    needed = {name for library in libraries for name in _needed(library)}
    missing = {name for name in needed if CUDA.match(name) and not (folder / name).exists() and name != "libcuda.so.1"}
    versioned, plain = _undefined(libraries)
    for name in sorted(missing):
        _compile(folder / name, versioned.get(name, {}), plain)
        plain = set()  # symbols without a version may be in any library


def _needed(library: Path) -> list[str]:
    return re.findall(r"NEEDED.*\[(.+)\]", _run("readelf", "-d", library))


def _undefined(libraries: list[Path]) -> tuple[dict[str, dict[str, set[str]]], set[str]]:
    """Return the undefined symbols by library and version, and those without a version that no library defines."""
    files = {}  # the library of a version
    versioned, plain, defined = {}, set(), set()
    for library in libraries:
        for name, versions in re.findall(r"File: (\S+) .*\n((?:.*Name: .*\n)+)", _run("readelf", "-VW", library)):
            files.update(dict.fromkeys(re.findall(r"Name: (\S+)", versions), name))
        for line in _run("nm", "-D", "--with-symbol-versions", library).splitlines():
            kind, symbol = line.split()[-2:]
            symbol, _, version = symbol.partition("@")
            if kind != "U":
                defined.add(symbol)
            elif version:
                versioned.setdefault(files[version], {}).setdefault(version, set()).add(symbol)
            else:
                plain.add(symbol)
    return versioned, {symbol for symbol in plain - defined if re.match(r"(_*cu|nv|nccl)", symbol)}


def _compile(target: Path, versions: dict[str, set[str]], plain: set[str]) -> None:
    symbols = sorted(plain.union(*versions.values()))
    lines = [ANSWERS.get(symbol, f"long {symbol}() {{ return {INSUFFICIENT_DRIVER}; }}") for symbol in symbols]
    exported = {version: " ".join(f"{symbol};" for symbol in sorted(names)) for version, names in versions.items()}
    script = [f"{version} {{ {symbols_text} }};" for version, symbols_text in exported.items()]
    with tempfile.TemporaryDirectory() as folder:
        source, version_script = Path(folder, "stub.c"), Path(folder, "versions")
        source.write_text("\n".join(lines) + "\n")
        version_script.write_text("\n".join(script) + "\n")
        scripted = [f"-Wl,--version-script={version_script}"] if versions else []
        _run("gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{target.name}", *scripted, source, "-o", target)


def _run(*command: str | Path) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
