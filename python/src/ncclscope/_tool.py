# SPDX-License-Identifier: Apache-2.0
"""The tool ``ncclscope``, which reads recordings."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ._plugin import SYSTEM, Error


def tool_path(plugin: str) -> Path:
    """The tool of a plugin: in this package, else near the plugin, else on ``PATH``."""
    near = Path(os.path.realpath(plugin)).parent
    places = [Path(__file__).parent / "bin", near, near / "../bin"]
    for directory in places:
        file = directory / "ncclscope"
        if file.is_file() and os.access(file, os.X_OK):
            return file
    found = shutil.which("ncclscope")
    if found is None:
        raise Error(SYSTEM, "cannot find the program ncclscope: put its directory on PATH")
    return Path(found)


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
