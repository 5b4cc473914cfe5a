"""The file of a recipe and the Python files beside it that it imports.

The recipe's code imports the modules in its folder as `python recipe.py` would, with two differences. The modules
belong to the recipe alone: other code does not see them, so two recipes may each have a `helper.py`. And they do not
replace modules of the standard library.

If `verified` contents are given, only these files are executed, as they were verified: the disk is not read again.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from shoestring.base.reading import read_bytes
from shoestring.base.units import MIB

_PACKAGE = "__init__.py"
_MAX_BYTES = 16 * MIB


class RecipeSource:
    """A recipe's file, with the digest of each file that was executed."""

    def __init__(self, path: Path, verified: Mapping[str, bytes] | None = None) -> None:
        """`verified` has the contents of the recipe's file and of the files that it may import, by their paths relative
        to its folder.

        Raises OSError if the file cannot be read.
        """
        self.path = path
        self.package = f"shoestring_recipe_{digest_of(os.fsencode(path))[:16]}"
        """The name of the recipe's module; the modules beside it are below this name."""
        self._verified = verified
        self._content = _read(path) if verified is None else verified[path.name]
        self._executed: dict[str, bytes] = {}
        self._is_beside: dict[str, bool] = {}

    @property
    def digest(self) -> str:
        """The digest of the recipe's file."""
        return digest_of(self._content)

    @property
    def imports(self) -> dict[str, str]:
        """The digests of the files beside the recipe that its import statements name, directly or not, by path."""
        contents = self.contents
        return {name: digest_of(contents[name]) for name in sorted(contents) if name != self.path.name}

    @property
    def contents(self) -> dict[str, bytes]:
        """The contents of the recipe's file and of the files that it imports, by path."""
        return dict(_imported_files(self)) | self._executed

    @property
    def files(self) -> dict[str, str]:
        """The digests of the recipe's file and of the files that it imports, by path."""
        return {self.path.name: self.digest, **self.imports}

    def execute(self) -> ModuleType:
        """Execute the file as a new module, whose earlier version and imported files are forgotten."""
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{self.package}.")]:
            del sys.modules[name]
        for finder in [finder for finder in sys.meta_path if getattr(finder, "package", "") == self.package]:
            sys.meta_path.remove(finder)
        sys.meta_path.insert(0, _Finder(self))
        arguments = sys.argv
        # The command line is Shoestring's: code that parses it when it is imported gets its own defaults.
        sys.argv = [str(self.path)]
        try:
            return importlib.import_module(self.package)
        finally:
            sys.argv = arguments

    def find(self, module: str) -> str | None:
        """Return the path of the file of `module`, such as `helper` or `tools.plots`, relative to the folder."""
        stem = module.replace(".", "/")
        return next((name for name in (f"{stem}/{_PACKAGE}", f"{stem}.py") if self._has(name)), None)

    def is_folder(self, module: str) -> bool:
        """Return whether `module` is a folder of modules without a file of its own."""
        folder = module.replace(".", "/")
        if self._verified is not None:
            return any(name.startswith(f"{folder}/") for name in self._verified)
        return (self.path.parent / folder).is_dir()

    def is_beside(self, module: str) -> bool:
        """Return whether the recipe's code imports the top-level `module` from its folder."""
        if module not in self._is_beside:
            is_other = module in sys.stdlib_module_names or module == "shoestring"
            self._is_beside[module] = not is_other and (
                self.find(module) is not None or (self.is_folder(module) and not _is_installed(module))
            )
        return self._is_beside[module]

    def content(self, name: str) -> bytes:
        """Return the content of a file by its relative path. Raises OSError."""
        if name == self.path.name:
            return self._content
        return _read(self.path.parent / name) if self._verified is None else self._verified[name]

    def record(self, name: str, content: bytes) -> None:
        """Record that the file was executed with this content."""
        self._executed[name] = content

    def refuses(self, spec: ModuleSpec | None) -> bool:
        """Return whether a module is a file in the recipe's folder although the files are verified."""
        if self._verified is None or spec is None or not spec.has_location or not spec.origin:
            return False
        folder, origin = self.path.parent, Path(spec.origin).resolve()
        # What lies below another entry of sys.path, such as an environment in the folder, is installed.
        entries = [entry for entry in (Path(entry).resolve() for entry in sys.path) if folder in entry.parents]
        return folder in origin.parents and not any(entry in origin.parents for entry in entries)

    def _has(self, name: str) -> bool:
        return (self.path.parent / name).is_file() if self._verified is None else name in self._verified


def _read(path: Path) -> bytes:
    return read_bytes(path, follow=True, max_bytes=_MAX_BYTES)


class _Loader(InspectLoader):
    """Executes the source of a file. Bytecode is neither read nor written: it could differ from the source."""

    def __init__(self, source: RecipeSource, name: str) -> None:
        self._source, self._name = source, name

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _Import(self._source)}
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the signature of the base class
        content = self._source.content(self._name)
        self._source.record(self._name, content)
        return self.source_to_code(content, str(self._source.path.parent / self._name))

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - the signature of the base class
        return importlib.util.decode_source(self._source.content(self._name))


class _RefusingLoader(Loader):
    def exec_module(self, module: ModuleType) -> None:
        raise ModuleNotFoundError(
            f"{module.__file__} lies beside the recipe and is not among its verified files", name=module.__name__
        )


class _Import:
    """The function `__import__` of the recipe's code."""

    def __init__(self, source: RecipeSource) -> None:
        self._source = source

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - the names of the function that it replaces
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or not self._source.is_beside(top):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        package = self._source.package
        try:
            module = builtins.__import__(f"{package}.{name}", globals, locals, fromlist or (), 0)
        except ModuleNotFoundError as error:
            missing = (error.name or "").removeprefix(f"{package}.")
            if missing == error.name:
                raise
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing) from None
        return module if fromlist else sys.modules[f"{package}.{top}"]


class _Finder(MetaPathFinder):
    """Finds the modules of one recipe, and keeps its code from importing files that are not verified."""

    def __init__(self, source: RecipeSource) -> None:
        self.source = source
        self.package = source.package

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002 - the signature of the base class
    ) -> ModuleSpec | None:
        folder = self.source.path.parent
        if f"{fullname}.".startswith(f"{self.package}."):
            module = fullname.removeprefix(self.package).removeprefix(".")
            if name := self.source.find(module) if module else self.source.path.name:
                is_package = not module or name.endswith(f"/{_PACKAGE}")
                return importlib.util.spec_from_file_location(
                    fullname,
                    folder / name,
                    loader=_Loader(self.source, name),
                    submodule_search_locations=[] if is_package else None,
                )
            if self.source.is_folder(module):
                return ModuleSpec(fullname, None, is_package=True)
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)  # no other finder may find it
        if self._is_called_by_recipe():
            spec = PathFinder.find_spec(fullname, path)
            if spec and self.source.refuses(spec):
                return importlib.util.spec_from_file_location(fullname, spec.origin, loader=_RefusingLoader())
            if not spec and self.source.find(fullname):
                raise ModuleNotFoundError(
                    f"No module named {fullname!r}: a module beside the recipe is imported by an import statement, not "
                    "by importlib",
                    name=fullname,
                )
        return None

    def _is_called_by_recipe(self) -> bool:
        frame: FrameType | None = sys._getframe(1)
        while frame:
            if f"{frame.f_globals.get('__name__')}.".startswith(f"{self.package}."):
                return True
            frame = frame.f_back
        return False


class RecipeModules:
    """The modules of the recipes that this process has loaded. In a process in which it is unpickled, such as a data
    worker that is spawned rather than forked, objects of their classes can be unpickled after it.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        sources = [finder.source for finder in sys.meta_path if isinstance(finder, _Finder)]
        return _find_modules, (tuple((source.path, source.contents) for source in sources),)


def _find_modules(sources: Sequence[tuple[Path, Mapping[str, bytes]]]) -> RecipeModules:
    packages = [finder.package for finder in sys.meta_path if isinstance(finder, _Finder)]
    for path, contents in sources:
        finder = _Finder(RecipeSource(path, contents))
        if finder.package not in packages:
            sys.meta_path.insert(0, finder)
    return RecipeModules()


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _is_installed(module: str) -> bool:
    """Return whether there is a module of this name that is more than a folder."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _imported_files(source: RecipeSource) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the content of the recipe's file and of all files beside it that import statements name."""
    pending, visited = [source.path.name], set[str]()
    while pending:
        name = pending.pop()
        if name in visited:
            continue
        visited.add(name)
        content = source.content(name)
        yield name, content
        for module in _imported_modules(name, content):
            if not source.is_beside(module.partition(".")[0]):
                continue
            parts = module.split(".")
            # Importing a.b.c executes a and a.b as well.
            parents = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
            pending += [file for parent in parents if (file := source.find(parent))]


def _imported_modules(name: str, content: bytes) -> Iterator[str]:
    """Yield the names of the modules that a file's import statements may import."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # executing the file raises the error
        return
    package = name.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            prefix = f"{module}." if module else ""
            yield from [*([module] if module else []), *(prefix + alias.name for alias in node.names)]
