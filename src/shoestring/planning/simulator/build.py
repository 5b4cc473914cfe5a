"""Compile the libraries in place of CUDA's for a build of PyTorch, once: later rehearsals take them from the cache.

A folder of the cache is named after a digest of everything that goes in: the sources, the compiler, PyTorch's version
and the shared objects whose symbols are read. It is written beside, and renamed when it is complete; a manifest has the
digest of each library, and a folder that does not match it is made again.
"""

import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoestring.base.cache import cache_folder
from shoestring.base.errors import RunError
from shoestring.base.packages.requirements import parse_version
from shoestring.base.reading import read_bytes, read_json
from shoestring.base.system_errors import explain
from shoestring.base.units import MIB
from shoestring.planning.simulator.compiling import compiling, stop_compilers
from shoestring.planning.simulator.compiling import run as _run
from shoestring.planning.simulator.symbols import CudaLibrary, needed_libraries
from shoestring.planning.simulator.torch_builds import TorchBuild

_SOURCES = Path(__file__).parent / "native"
_COMPILED_BY = (Path(__file__), Path(__file__).with_name("symbols.py"))
"""The code that decides what is compiled, and how."""
_MANIFEST = "manifest.json"
TORCH_LIBRARY = "libshoestring_torch.so"
"""What computes values and counts memory: it is linked with PyTorch and loaded when PyTorch uses a device."""
_LIBRARY_BYTES = 64 * MIB
"""The largest library; that of values has some 10 MiB."""

_OTHER_OBJECTS = (
    "bitsandbytes/libbitsandbytes_cuda{cuda}.so",
    "torchvision/*.so",
    "torchaudio/**/*.so",
    "torchao/*.so",
    "flash_attn*.so",
    "xformers/*.so",
)
"""Shared objects of other packages that call CUDA's libraries themselves, below the folder of packages."""

_SUCCESS = 0
_STATUS_OF_STUBS: Mapping[str, int] = {
    "libcudart": 801,  # cudaErrorNotSupported
    "libcuda": 801,  # CUDA_ERROR_NOT_SUPPORTED
    "libcudnn": 3000,  # CUDNN_STATUS_NOT_SUPPORTED
    "libcufft": 16,  # CUFFT_NOT_SUPPORTED
    "libcurand": 202,  # CURAND_STATUS_INITIALIZATION_FAILED
    "libnvrtc": 1,  # NVRTC_ERROR_OUT_OF_MEMORY
    "libcufile": 5001,  # CU_FILE_DRIVER_NOT_INITIALIZED
    "libcupti": 15,  # CUPTI_ERROR_NOT_INITIALIZED
    "libnccl": 5,  # ncclInvalidUsage
}
"""What a function that is not simulated returns, by library. Those of the others (cuBLAS, cuSOLVER, cuSPARSE) launch
kernels, which do nothing here, and succeed."""

_DRIVER_NAMES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")
"""Other names of the library in place of the runtime, which answers for the driver and NVML as well."""

Progress = Callable[[str, int, int], object]
"""Called with what is compiled, how many parts are done and how many there are."""


@dataclass(frozen=True, kw_only=True)
class SimulatorLibraries:
    """The compiled libraries for a build of PyTorch."""

    folder: Path
    preloaded: tuple[Path, ...]
    """Those that a process loads before all others, in order."""


def libraries(build: TorchBuild, progress: Progress = lambda *_: None) -> SimulatorLibraries:
    """Return the libraries for this build of PyTorch, compiling them if the cache lacks them.

    Raises RunError if there is no C++ compiler, if it fails, or if the cache cannot be written.
    """
    compiler = _compiler()
    objects = tuple(_shared_objects(build))
    folder = cache_folder("simulator") / f"{build.version}-{_digest(build, compiler, objects)}"
    try:
        if not _is_complete(folder):  # a cache that cannot be written does as well if all is there
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _locked(folder.with_name(f"{folder.name}.lock"), progress):
                if not _is_complete(folder):
                    _remove_remains(folder)
                    _make(folder, build, compiler, objects, progress)
    except OSError as error:
        raise explain(f"the simulator's libraries could not be written to {folder.parent}", error) from error
    with suppress(OSError):
        os.utime(folder)
    names = read_json(folder / _MANIFEST)["preloaded"]
    return SimulatorLibraries(folder=folder, preloaded=tuple(folder / name for name in names))


def _compiler() -> str:
    """Return the path of a C++ compiler."""
    named = os.environ.get("CXX")
    for name in (named,) if named else ("g++", "c++", "clang++"):
        if path := shutil.which(name):
            return path
    raise RunError(
        f"the compiler {named}, which CXX names, was not found"
        if named
        else "there is no C++ compiler on this machine",
        problems=["the libraries that stand in place of CUDA's are compiled on first use"],
        hint="apt-get install g++ (conda: conda install cxx-compiler), or name one: CXX=/path/to/g++",
    )


def _shared_objects(build: TorchBuild) -> Iterator[Path]:
    """Return the shared objects whose undefined symbols the libraries define: PyTorch's and those of its companions."""
    for path in sorted((build.folder / "lib").glob("lib*.so")):
        if re.match(r"lib(torch|c10|caffe2)", path.name):
            yield path
    digits = (build.cuda or "").replace(".", "")
    for pattern in _OTHER_OBJECTS:
        yield from sorted(build.folder.parent.glob(pattern.format(cuda=digits)))


def _digest(build: TorchBuild, compiler: str, objects: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    version = _run([compiler, "--version"], "the compiler does not run").splitlines()[0]
    for part in (build.version, compiler, version):
        digest.update(part.encode() + b"\0")
    for path in objects:  # gigabytes: their contents would take longer to read than the rest takes to start
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\0".encode())
    # Our own files count by their contents alone, so that all copies of one version share what is compiled.
    native = sorted(path for path in _SOURCES.rglob("*") if path.suffix in (".h", ".cpp"))
    for path in (*_COMPILED_BY, *native):
        digest.update(str(path.relative_to(_SOURCES.parent)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold a lock: of two rehearsals that begin together, one compiles and the other waits for it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("the simulator in another rehearsal, for which this one waits", 0, 1)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_remains(folder: Path) -> None:
    """Remove a damaged folder, and what a compilation that was killed has left beside it."""
    for path in (folder, *folder.parent.glob(f".{glob.escape(folder.name)}-*")):
        shutil.rmtree(path, ignore_errors=True)


def _is_complete(folder: Path) -> bool:
    """Return whether the folder has all libraries of its manifest, unchanged."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        digests = read_json(folder / _MANIFEST)["sha256"]
        return all(_file_digest(folder / name) == digest for name, digest in digests.items())
    return False


def _file_digest(path: Path) -> str:
    return hashlib.sha256(read_bytes(path, follow=True, max_bytes=_LIBRARY_BYTES)).hexdigest()


def _make(folder: Path, build: TorchBuild, compiler: str, objects: Sequence[Path], progress: Progress) -> None:
    """Compile all libraries into `folder`."""
    needed = needed_libraries(objects)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name, compiling(Path(name)):
        unfinished = Path(name)
        parts = [partial(_compile_runtime, unfinished, build, compiler, needed)]
        parts += [
            partial(_compile_library, unfinished, build, compiler, library)
            for library in needed.values()
            if not library.name.startswith(("libcudart.", "libcuda."))
        ]
        units = unfinished / "objects"
        units.mkdir()
        torch_sources = sorted((_SOURCES / "torch").glob("*.cpp"))
        progress("the simulator", 0, len(parts) + len(torch_sources))
        _precompile(units, build, compiler)
        parts += [partial(_compile_torch_unit, units, build, compiler, source) for source in torch_sources]
        finished = 0
        with ThreadPoolExecutor(max_workers=max(1, min(4, os.cpu_count() or 1))) as pool:
            try:
                for _ in pool.map(lambda part: part(), parts):
                    finished += 1
                    progress("the simulator", finished, len(parts))
            except BaseException:
                stop_compilers()
                raise
        runtime = next(library for library in needed if library.startswith("libcudart."))
        _link_torch(unfinished, build, compiler, sorted(units.glob("*.o")), runtime)
        shutil.rmtree(units)
        for link in _DRIVER_NAMES:
            (unfinished / link).symlink_to(runtime)
        names = sorted(path.name for path in unfinished.iterdir())
        preloaded = [runtime, *(name for name in needed if not name.startswith(("libcudart.", "libcuda.")))]
        digests = {name: _file_digest(unfinished / name) for name in names}
        (unfinished / _MANIFEST).write_text(json.dumps({"preloaded": preloaded, "sha256": digests}, indent=1))
        unfinished.rename(folder)
        unfinished.mkdir()  # which the context manager removes


def _compile_runtime(folder: Path, build: TorchBuild, compiler: str, needed: Mapping[str, CudaLibrary]) -> None:
    """Compile what answers for CUDA's runtime, its driver and NVML, which are one library here."""
    runtime = next(library for library in needed.values() if library.name.startswith("libcudart."))
    driver = next((library.symbols for library in needed.values() if library.name.startswith("libcuda.")), frozenset())
    whole = CudaLibrary(name=runtime.name, version=runtime.version, symbols=runtime.symbols | driver)
    _compile_shared(folder, build, compiler, whole, sorted((_SOURCES / "cuda").glob("*.cpp")))


def _compile_library(folder: Path, build: TorchBuild, compiler: str, library: CudaLibrary) -> None:
    stem = library.name.removeprefix("lib").partition(".")[0].lower()
    sources = [
        path
        for path in sorted((_SOURCES / "libraries").glob("*.cpp"))
        if re.fullmatch(rf"{re.escape(stem)}(_\w+)?", path.stem.lower())
    ]
    _compile_shared(folder, build, compiler, library, sources)


def _compile_shared(
    folder: Path, build: TorchBuild, compiler: str, library: CudaLibrary, sources: Sequence[Path]
) -> None:
    """Compile a library from its sources, and stubs for the symbols that they do not define."""
    stubs = folder / f"{library.name}.stubs.cpp"
    stubs.write_text(_stub_source(library))
    script = folder / f"{library.name}.map"
    script.write_text(f"{library.version} {{ global: *; }};\n" if library.version else "{ global: *; };\n")
    _run(
        [
            *(compiler, "-std=c++17", "-O1", "-g1", "-fPIC", "-shared", "-fvisibility=hidden", "-w", "-pthread"),
            *(f"-I{_SOURCES}", f"-DSIMULATED_CUDA_VERSION={build.cuda_number}", *_versions(build)),
            *(f"-Wl,-soname,{library.name}", f"-Wl,--version-script={script}"),
            *("-o", str(folder / library.name), *map(str, sources), str(stubs), "-ldl", "-lrt"),
        ],
        f"{library.name} could not be compiled",
    )
    stubs.unlink()
    script.unlink()


def _versions(build: TorchBuild) -> list[str]:
    """Return the definitions of the versions of libraries that PyTorch compares with those that it was built for."""
    definitions = []
    if version := build.required_version("nvidia-cudnn"):
        major, minor, patch = map(int, version.split(".")[:3])
        definitions.append(f"-DSIMULATED_CUDNN_VERSION={major * 10_000 + minor * 100 + patch}")
    if version := build.required_version("nvidia-nccl"):
        major, minor, patch = map(int, version.split(".")[:3])
        definitions.append(f"-DSIMULATED_NCCL_VERSION={major * 10_000 + minor * 100 + patch}")
    return definitions


def _stub_source(library: CudaLibrary) -> str:
    """Return weak definitions of all symbols of a library, which its sources override with their own.

    A call of one that does not succeed is noted.
    """
    status = _STATUS_OF_STUBS.get(library.name.partition(".")[0], _SUCCESS)
    attributes = '__attribute__((visibility("default"), weak))'
    note = 'report_missing("{0}"); ' if status else ""
    lines = [
        'extern "C" __attribute__((weak)) void simulator_missing(const char*);',
        "static void report_missing(const char* name) { if (simulator_missing) simulator_missing(name); }",
        *(
            f'extern "C" {attributes} long {symbol}() {{ {note.format(symbol)}return {status}; }}'
            for symbol in sorted(library.symbols)
        ),
    ]
    return "\n".join(lines) + "\n"


_PRECOMPILED = "precompiled.h"
_HEADERS = ("ATen/ATen.h", "ATen/core/dispatch/Dispatcher.h", "ATen/core/stack.h", "ATen/record_function.h")
"""PyTorch's headers, which take longest to compile: they are compiled once for all sources that are linked with it."""


def _precompile(folder: Path, build: TorchBuild, compiler: str) -> None:
    header = folder / _PRECOMPILED
    header.write_text("".join(f"#include <{name}>\n" for name in _HEADERS))
    command = [*_torch_flags(build, compiler), "-x", "c++-header", "-o", f"{header}.gch", str(header)]
    _run(command, f"the headers of PyTorch {build.version} could not be compiled")


def _compile_torch_unit(folder: Path, build: TorchBuild, compiler: str, source: Path) -> None:
    command = [*_torch_flags(build, compiler), "-c", "-include", str(folder / _PRECOMPILED)]
    _run(
        [*command, "-o", str(folder / f"{source.stem}.o"), str(source)],
        f"{source.name} could not be compiled for PyTorch {build.version}",
    )


def _torch_flags(build: TorchBuild, compiler: str) -> list[str]:
    """Return the command that compiles what is linked with PyTorch, without its input and output."""
    include = build.folder / "include"
    return [
        *(compiler, "-std=c++20" if parse_version(build.release) >= parse_version("2.12") else "-std=c++17"),
        *("-O1", "-fPIC", "-fvisibility=hidden", "-w", "-pthread"),
        # PyTorch's headers of CUDA include those of CUDA itself: declarations of ours stand in their place.
        *(f"-I{_SOURCES}", f"-I{_SOURCES / 'torch' / 'cuda_headers'}"),
        *(f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"),
        *(f"-DSIMULATED_CUDA_VERSION={build.cuda_number}", f"-DTORCH_RELEASE={_release_number(build)}"),
    ]


def _release_number(build: TorchBuild) -> int:
    """Return PyTorch's version as a number that sources compare, such as 210 for 2.10."""
    major, minor = build.release.split(".")[:2]
    return int(major) * 100 + int(minor)


def _link_torch(folder: Path, build: TorchBuild, compiler: str, units: Sequence[Path], runtime: str) -> None:
    """Link what computes values with PyTorch's libraries, which are in the process when it is loaded."""
    _run(
        [
            *(compiler, "-shared", "-pthread", "-o", str(folder / TORCH_LIBRARY), *map(str, units)),
            # Named by its path: a library of that name may lie beside PyTorch's own.
            *(str(folder / runtime), f"-L{build.folder / 'lib'}", "-ltorch_cpu", "-ltorch_cuda", "-lc10", "-lc10_cuda"),
            *("-ldl", "-Wl,--unresolved-symbols=ignore-in-shared-libs"),
        ],
        f"{TORCH_LIBRARY} could not be linked with PyTorch {build.version}",
    )
