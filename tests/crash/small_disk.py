"""A small filesystem that can be full or read-only for a while."""

import contextlib
import errno
import shutil
import subprocess


class SmallDisk:
    """A small filesystem for runs, that can be full or read-only; without root only a directory.

    When it is closed, its content is stored in a directory beside it until it is opened again.
    """

    def __init__(self, path):
        self.path, self._stored = path, path.with_name(f"{path.name}-stored")
        path.mkdir(parents=True, exist_ok=True)
        if not path.is_mount():
            self._mount("-t", "tmpfs", "-o", "size=8m", "soak", path)
            if self._stored.exists():
                shutil.copytree(self._stored, path, dirs_exist_ok=True)
        shutil.rmtree(self._stored, ignore_errors=True)
        self.is_mounted = path.is_mount()
        self.restore()

    @staticmethod
    def _mount(*arguments):
        return subprocess.run(["mount", *map(str, arguments)], capture_output=True, check=False).returncode == 0

    def fill(self):
        with (self.path / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(65536))

    def fill_rest(self):
        """Fill what other processes have freed since `fill`."""
        try:
            with (self.path / "filler").open("ab", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def free(self):
        (self.path / "filler").unlink(missing_ok=True)

    def read_only(self):
        return self._mount("-o", "remount,ro", self.path)

    def immutable(self, run, value):
        """Make the files and directories of a run unchangeable, or changeable again."""
        sign = "+i" if value else "-i"
        return subprocess.run(["chattr", "-R", sign, str(run)], capture_output=True, check=False).returncode == 0

    def restore(self):
        """End what a fault did to the disk."""
        if self.is_mounted:
            self._mount("-o", "remount,rw", self.path)
            self.immutable(self.path, False)
        self.free()

    def close(self):
        self.restore()
        if self.is_mounted:
            shutil.copytree(self.path, self._stored)
            subprocess.run(["umount", str(self.path)], capture_output=True, check=False)
