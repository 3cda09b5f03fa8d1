# SPDX-License-Identifier: Apache-2.0
"""See into NCCL from Python.

The plugin records what NCCL does in this process. These functions say when, through the plugin
that NCCL loaded, or that it will load with the first communicator:

    import ncclscope

    with ncclscope.window():       # or start() and stop()
        train_some_steps()
    ncclscope.dump("/tmp/steps")   # a copy of the recording, for the tool

NCCL must find the plugin when the first communicator is made: by the variables that
``python -m ncclscope --env`` prints, or after `load`. For PyTorch's profiler see `ncclscope.torch`.

All functions may be called from any thread, and act on the whole process. Each raises `Error`
where the plugin cannot do it.
"""

from __future__ import annotations

import atexit
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _plugin
from ._plugin import BAD, OFF, SYSTEM, Error, library, plugin_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "BAD",
    "OFF",
    "SYSTEM",
    "Error",
    "dump",
    "is_started",
    "load",
    "mark",
    "on_hang",
    "plugin_path",
    "set_role",
    "set_step",
    "simulate_hang",
    "start",
    "stop",
    "version",
    "window",
]


def version() -> str:
    """The plugin's version, such as ``0.1.0``."""
    return library().version()


def load(output: Union[str, os.PathLike[str], None] = None) -> None:
    """Has NCCL load the plugin in this process, and in those that it starts from here on.

    For where no variable could be set before Python began; to be called before the first
    communicator is made, as NCCL looks for a plugin once. ``output`` is the directory of the
    recordings, which is made. What ``NCCL_PROFILER_PLUGIN`` named before is chained.
    """
    _plugin.load(output)


def start(
    *,
    seconds: Optional[float] = None,
    steps: Optional[int] = None,
    at: Optional[float] = None,
    sample: int = 1,
) -> None:
    """Records operations from now on, in place of any window before.

    ``seconds`` or ``steps`` (training steps, see `set_step`; from the next one on) end the window
    by themselves. ``at`` begins it at a time, in seconds since 1970, the same on all hosts.
    ``sample`` records every so many-th operation. Before the first communicator the window waits
    for that.
    """
    words = []
    if seconds is not None:
        words.append(f"for={seconds:.9f}s")
    if steps is not None:
        words.append(f"steps={steps}")
    if at is not None:
        words.append(f"at={at:.9f}")
    if sample != 1:
        words.append(f"sample={sample}")
    if seconds is not None and steps is not None:
        raise Error(BAD, "seconds and steps are two ends of one window: choose one")
    library().start(" ".join(words))


def stop() -> None:
    """Leaves out operations that are issued from here on."""
    library().stop()


def is_started() -> bool:
    """Whether operations that begin now are recorded."""
    return library().is_started()


@contextmanager
def window(*, sample: int = 1) -> Iterator[None]:
    """Records what is issued in the ``with`` block; if it is recorded anyway, changes nothing."""
    plugin = library()
    is_ours = plugin.begin("window")
    if is_ours and sample != 1:
        start(sample=sample)
    try:
        yield
    finally:
        if is_ours:
            plugin.stop()


def dump(path: Union[str, os.PathLike[str], None] = None) -> None:
    """Copies the recording as it is now.

    ``path`` is a file that ends in ``.nscope`` and does not exist, or a directory, which is made.
    Without one the copy is in a new directory beside the recording.
    """
    library().dump(None if path is None else os.path.abspath(path))


def mark(name: str) -> None:
    """Puts a name into the recording, as of now."""
    library().mark(name)


def set_step(step: int) -> None:
    """Training step number ``step`` begins."""
    library().set_step(step)


def set_role(comm_hash: int, role: str) -> None:
    """The communicator with this hash (``ncclscope ls`` shows it) is for ``role``, such as tp."""
    library().set_role(comm_hash, role)


def on_hang(function: Optional[Callable[[dict[str, Any]], None]]) -> None:
    """Has ``function`` told when an operation of NCCL's is stuck, and when that is over.

    It gets the report as a dictionary (``docs/hang.md``; ``event`` is ``hung`` or ``recovered``) on
    a thread of the plugin's. A thread that keeps Python's lock for itself keeps it from running.
    ``None``: the calls end.
    """
    plugin = library()
    if function is None:
        plugin.on_hang(None)
        return
    plugin.on_hang(lambda text: function(json.loads(text)))
    # No thread may come into Python after its end.
    atexit.register(plugin.on_hang, None)


def simulate_hang(seconds: float) -> None:
    """A drill: an operation that is not there stands still, and the watchdog finds it."""
    library().simulate_hang(seconds)
