# SPDX-License-Identifier: Apache-2.0
"""The tool ``ncclscope``, which reads recordings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Optional

from ._plugin import SYSTEM, Error

NAME = "ncclscope"
PACKAGED = Path(__file__).parent / "bin" / NAME


def tool_path(plugin: str) -> Path:
    """The tool of a plugin: in this package, else near the plugin, else on ``PATH``."""
    near = Path(os.path.realpath(plugin)).parent
    for file in (PACKAGED, near / NAME, near / "../bin" / NAME):
        if _is_program(file):
            return file
    found = _on_path()
    if found is None:
        raise Error(SYSTEM, "cannot find the program ncclscope: put its directory on PATH")
    return found


def packaged() -> Optional[Path]:
    """The tool in this package, if it has one."""
    return PACKAGED if _is_program(PACKAGED) else None


def _is_program(file: Path) -> bool:
    return file.is_file() and os.access(file, os.X_OK)


def _on_path() -> Optional[Path]:
    """The tool on ``PATH``: not the command that pip made of this package, which asks us."""
    for directory in os.get_exec_path():
        file = Path(directory or ".", NAME)
        if _is_program(file) and not _is_command(file):
            return file
    return None


def _is_command(file: Path) -> bool:
    try:
        with open(file, "rb") as script:
            return b"ncclscope.__main__" in script.read(4096)
    except OSError:
        return False


def run(tool: Path, *args: str) -> None:
    """Runs the tool; if it fails, raises its message as an `Error`."""
    try:
        done = subprocess.run(
            [str(tool), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    except OSError as error:
        raise Error(SYSTEM, f"cannot run {tool}: {error}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise Error(SYSTEM, said or f"{tool} exited with {done.returncode}")
