"""The symbols that shared objects need of CUDA's libraries, read from objects that are compiled here."""

import shutil
import subprocess

import pytest

from shoestring.base.errors import RunError
from shoestring.planning.simulator.symbols import needed_libraries

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def compile_shared(folder, name, source, *arguments):
    code = folder / f"{name}.cpp"
    code.write_text(source)
    command = ["g++", "-shared", "-fPIC", "-nostdlib", "-o", str(folder / name), str(code), *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / name


def test_symbols_with_and_without_versions_are_found_in_their_libraries(tmp_path):
    script = tmp_path / "versions"
    script.write_text("libcudart.so.13 { global: *; };")
    runtime = compile_shared(
        tmp_path,
        "libcudart.so.13",
        'extern "C" int cudaMalloc() { return 0; }',
        "-Wl,-soname,libcudart.so.13",
        f"-Wl,--version-script={script}",
    )
    source = 'extern "C" int ncclSend() { return 0; }'
    nccl = compile_shared(tmp_path, "libnccl.so.2", source, "-Wl,-soname,libnccl.so.2")
    source = """
extern "C" int cudaMalloc();
extern "C" int ncclSend();
extern "C" int printf();
int all() { return cudaMalloc() + ncclSend() + printf(); }
"""
    user = compile_shared(tmp_path, "libtorch_cuda.so", source, runtime, nccl)
    libraries = needed_libraries([user])
    assert set(libraries) == {"libcudart.so.13", "libnccl.so.2"}
    assert libraries["libcudart.so.13"].version == "libcudart.so.13"
    assert libraries["libcudart.so.13"].symbols == {"cudaMalloc"}
    assert libraries["libnccl.so.2"].version == ""
    assert libraries["libnccl.so.2"].symbols == {"ncclSend"}


def test_file_that_is_no_shared_object_is_named(tmp_path):
    (tmp_path / "libtorch.so").write_text("not an object")
    with pytest.raises(RunError, match=r"cannot read .*libtorch\.so"):
        needed_libraries([tmp_path / "libtorch.so"])


def test_missing_binutils_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="readelf is not installed") as error:
        needed_libraries([tmp_path / "libtorch.so"])
    assert "apt-get install g++" in error.value.hint
