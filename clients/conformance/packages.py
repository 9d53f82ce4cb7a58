"""The clients, built as packages and installed into clean folders, and copies of them that are broken on purpose."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
CLIENTS = HERE.parent
Command = tuple[list[str], dict[str, str], pathlib.Path]


def run(*command: str | pathlib.Path, cwd: pathlib.Path | None = None) -> None:
    done = subprocess.run([str(each) for each in command], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}")


def edit(folder: pathlib.Path, told: dict[str, Any]) -> None:
    """Replaces texts that are there once."""
    for change in told["edits"]:
        file = folder / change["file"]
        text = file.read_text()
        if text.count(change["find"]) != 1:
            sys.exit(f"{told['title']}: {file} has this {text.count(change['find'])} times, and not once:\n{change['find']}")
        file.write_text(text.replace(change["find"], change["replace"]))


class Python:
    name = "python"
    # Beside what all clients do: heartbeats go on while a script blocks the loop for a short time, and functions run in threads.
    abilities = ("beats_beside_the_loop", "plain")

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.path: pathlib.Path | None = None

    def build(self) -> None:
        """A wheel, in a new virtual environment."""
        shutil.rmtree(self.folder, ignore_errors=True)
        # setuptools writes beside its sources.
        source = self.folder / "source"
        shutil.copytree(CLIENTS / "python", source, ignore=shutil.ignore_patterns("tests", "build", "*.egg-info", "__pycache__"))
        run(sys.executable, "-m", "venv", self.folder / "venv")
        pip = (self.folder / "venv/bin/pip", "--disable-pip-version-check", "--quiet")
        run(*pip, "wheel", "--no-deps", "--wheel-dir", self.folder, source)
        shutil.rmtree(source)
        (wheel,) = self.folder.glob("*.whl")
        run(*pip, "install", wheel)
        run(self.folder / "venv/bin/python", "-m", "compileall", "-q", HERE / "drivers/python")

    def broken(self, folder: pathlib.Path, told: dict[str, Any]) -> Python:
        """A copy that comes before the installed package."""
        shutil.rmtree(folder, ignore_errors=True)
        (package,) = self.folder.glob("venv/lib/python*/site-packages/turnwise_client")
        shutil.copytree(package, folder / "turnwise_client")
        edit(folder / "turnwise_client", told)
        copy = Python(self.folder)
        copy.path = folder
        return copy

    def _command(self, environment: dict[str, str], *command: str) -> Command:
        if self.path is not None:
            environment = {**environment, "PYTHONPATH": str(self.path)}
        return [str(self.folder / "venv/bin" / command[0]), *command[1:]], environment, HERE / "drivers/python"

    def worker(self, name: str, slots: int, grace: float, environment: dict[str, str]) -> Command:
        return self._command(environment, "turnwise-worker", "driver", "--name", name, "--slots", str(slots), "--grace", str(grace))

    def client(self, environment: dict[str, str], plain: bool) -> Command:
        return self._command(environment, "python", "driver.py", *(["plain"] if plain else []))


class TypeScript:
    name = "typescript"
    abilities = ()

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def build(self) -> None:
        """The tarball of npm, in a new folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        source = CLIENTS / "typescript"
        if not (source / "node_modules").exists():
            run("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", cwd=source)
        run("npm", "pack", "--loglevel=error", "--pack-destination", self.folder, cwd=source)
        (tarball,) = self.folder.glob("*.tgz")
        (self.folder / "package.json").write_text('{"private": true, "type": "module"}\n')
        run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", tarball, cwd=self.folder)

    def broken(self, folder: pathlib.Path, told: dict[str, Any]) -> TypeScript:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder, symlinks=True)
        edit(folder / "node_modules/turnwise-client/dist", told)
        return TypeScript(folder)

    def _command(self, environment: dict[str, str], *command: str) -> Command:
        # Node looks for the package beside the driver.
        shutil.copy(HERE / "drivers/typescript/driver.mjs", self.folder)
        return list(command), environment, self.folder

    def worker(self, name: str, slots: int, grace: float, environment: dict[str, str]) -> Command:
        command = ("node_modules/.bin/turnwise-worker", "./driver.mjs", "--name", name, "--slots", str(slots), "--grace", str(grace))
        return self._command(environment, *command)

    def client(self, environment: dict[str, str], plain: bool) -> Command:
        return self._command(environment, "node", "driver.mjs")


LANGUAGES = {language.name: language for language in (Python, TypeScript)}


def target() -> pathlib.Path:
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", CLIENTS.parent / "target")).resolve() / "conformance"
