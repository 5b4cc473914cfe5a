"""The cache of compiled libraries: made once, verified, its errors. Tests with a CUDA build compile the real ones."""

import json
import shutil
import subprocess
import threading
import time

import pytest

from shoestring.base.errors import RunError
from shoestring.planning.simulator import build
from shoestring.planning.simulator.symbols import CudaLibrary
from shoestring.planning.simulator.torch_builds import TorchBuild

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.fixture
def torch_build(tmp_path):
    (tmp_path / "site" / "torch" / "lib").mkdir(parents=True)
    return TorchBuild(folder=tmp_path / "site" / "torch", version="2.10.0+cu128", cuda="12.8")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Folders of the cache that were compiled, each with one small library in place of the real ones."""
    folders = []

    def make(folder, torch_build, compiler, objects, progress):
        folder.mkdir()
        (folder / "libcudart.so.12").write_text("library")
        digests = {"libcudart.so.12": build._file_digest(folder / "libcudart.so.12")}
        (folder / "manifest.json").write_text(json.dumps({"preloaded": ["libcudart.so.12"], "sha256": digests}))
        folders.append(folder)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_make", make)
    return folders


@needs_compiler
def test_libraries_are_compiled_once(torch_build, made):
    first, second = build.libraries(torch_build), build.libraries(torch_build)
    assert first == second and made == [first.folder]
    assert first.preloaded == (first.folder / "libcudart.so.12",)


@needs_compiler
@pytest.mark.parametrize("damage", ["changed", "removed", "manifest"])
def test_damaged_folder_is_compiled_again(torch_build, made, damage):
    folder = build.libraries(torch_build).folder
    library, manifest = folder / "libcudart.so.12", folder / "manifest.json"
    if damage == "removed":
        library.unlink()
    else:
        (library if damage == "changed" else manifest).write_text("{}")
    build.libraries(torch_build)
    assert made == [folder, folder] and library.read_text() == "library"


@needs_compiler
def test_other_pytorch_has_another_folder(torch_build, made, tmp_path):
    other = tmp_path / "site" / "torch" / "lib" / "libtorch_cuda.so"
    folder = build.libraries(torch_build).folder
    other.write_text("other symbols")
    assert build.libraries(torch_build).folder != folder


@needs_compiler
def test_a_copy_of_the_sources_has_the_same_folder_until_one_changes(torch_build, made, tmp_path, monkeypatch):
    folder = build.libraries(torch_build).folder
    copy = tmp_path / "copy" / "simulator"
    shutil.copytree(build._SOURCES.parent, copy, copy_function=shutil.copyfile)  # with times of their own
    monkeypatch.setattr(build, "_SOURCES", copy / "native")
    monkeypatch.setattr(build, "_COMPILED_BY", [copy / path.name for path in build._COMPILED_BY])
    assert build.libraries(torch_build).folder == folder and made == [folder]
    changed = {folder}
    for path in (copy / "symbols.py", copy / "build.py", next((copy / "native").glob("cuda/*.cpp"))):
        path.write_text(f"{path.read_text()}\n")
        changed.add(build.libraries(torch_build).folder)
    assert len(changed) == 4


def test_missing_compiler_is_named_with_its_remedy(torch_build, made, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RunError, match=r"no C\+\+ compiler") as error:
        build.libraries(torch_build)
    assert "apt-get install g++" in error.value.hint
    monkeypatch.setenv("CXX", "clang++-99")
    with pytest.raises(RunError, match=r"clang\+\+-99, which CXX names, was not found"):
        build.libraries(torch_build)


@needs_compiler
def test_complete_cache_need_not_be_writable(torch_build, made, tmp_path, monkeypatch):
    folder = build.libraries(torch_build).folder
    folder.with_name(f"{folder.name}.lock").unlink()
    monkeypatch.setattr(build, "_locked", None)
    assert build.libraries(torch_build).folder == folder and made == [folder]


@needs_compiler
def test_remains_of_a_compilation_that_was_killed_are_removed(torch_build, made):
    folder = build.libraries(torch_build).folder
    remains = folder.with_name(f".{folder.name}-x3")
    remains.mkdir()
    (folder / "libcudart.so.12").unlink()
    build.libraries(torch_build)
    assert not remains.exists()


@needs_compiler
def test_rehearsal_that_waits_for_another_one_says_so(torch_build, made, tmp_path):
    said = []
    held = tmp_path / "lock"
    with build._locked(held, print):
        waiting = threading.Thread(target=lambda: build._locked(held, lambda *words: said.append(words)).__enter__())
        waiting.start()
        while not said:
            time.sleep(0.01)
    waiting.join()
    assert "another rehearsal" in said[0][0]


@needs_compiler
def test_cache_that_cannot_be_written_is_named(torch_build, made, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Exception, match="could not be written"):
        build.libraries(torch_build)


@needs_compiler
def test_error_of_the_compiler_is_shown(tmp_path):
    (tmp_path / "broken.cpp").write_text("int f( {")
    with pytest.raises(RunError, match="could not be compiled") as error:
        build._run(["g++", "-c", str(tmp_path / "broken.cpp")], "broken.cpp could not be compiled")
    assert "broken.cpp:1" in error.value.problems[0]


@needs_compiler
def test_functions_without_a_source_answer_that_they_are_not_supported(tmp_path):
    library = CudaLibrary(name="libcudnn.so.9", version="libcudnn.so.9", symbols=frozenset({"cudnnNoSuchFunction"}))
    build._compile_shared(
        tmp_path, TorchBuild(folder=tmp_path, version="2.10.0", cuda="12.8"), "g++", library, sources=[]
    )
    code = f"import ctypes; print(ctypes.CDLL({str(tmp_path / library.name)!r}).cudnnNoSuchFunction())"
    result = subprocess.run(["python3", "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout == "3000\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["libcudnn.so.9"]
