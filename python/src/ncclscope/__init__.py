# SPDX-License-Identifier: Apache-2.0
"""See into NCCL from Python.

The plugin records what NCCL does in this process. These functions control when. They call the
plugin that NCCL loaded, or that NCCL will load with the first communicator:

    import ncclscope

    with ncclscope.window():       # or start() and stop()
        train_some_steps()
    ncclscope.dump("/tmp/steps")   # a copy of the recording, for the tool

NCCL must find the plugin when the process creates its first communicator: through the variables
that ``python -m ncclscope --env`` prints, or after `load`. For PyTorch's profiler see
`ncclscope.torch`.

All functions may be called from any thread, and act on the whole process. A function raises `Error`
if the plugin cannot do what it asks for, and nothing else. If NCCL loads no plugin, the first call
warns, and no call does anything; with ``required=True`` it raises `Error` instead.
"""

from __future__ import annotations

import atexit
import json
import os
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _plugin
from ._plugin import BAD, OFF, SYSTEM, Error, acting, errors_only, plugin_path

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


try:
    __version__ = metadata.version("ncclscope")
except metadata.PackageNotFoundError:
    # The package is not installed, but found through a path.
    __version__ = ""


@errors_only
def version(*, required: bool = False) -> str:
    """The plugin's version, such as ``0.1.0``; empty without a plugin."""
    return acting(required).version()


def load(output: Union[str, os.PathLike[str], None] = None) -> None:
    """Makes NCCL load the plugin in this process, and in processes that it starts afterwards.

    Use it if the variables cannot be set before Python starts. Call it before the process creates
    its first communicator, because NCCL looks for a plugin only then. ``output`` is the directory
    of the recordings, which is created. A plugin that ``NCCL_PROFILER_PLUGIN`` already names is
    chained.
    """
    _plugin.load(output)


@errors_only
def start(
    *,
    seconds: Optional[float] = None,
    steps: Optional[int] = None,
    at: Optional[float] = None,
    sample: int = 1,
    required: bool = False,
) -> None:
    """Records operations from now on, and replaces an earlier window.

    The window ends after ``seconds``, or after ``steps`` training steps (see `set_step`) from the
    next one on. ``at`` is the time at which it begins, in seconds since 1970, the same on all
    hosts. With ``sample=N`` it has every Nth operation. Before the first communicator, the window
    waits for that communicator.
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
        raise Error(BAD, "seconds and steps both end the window: choose one")
    acting(required).start(" ".join(words))


@errors_only
def stop(*, required: bool = False) -> None:
    """Stops recording operations that are issued from now on."""
    acting(required).stop()


@errors_only
def is_started(*, required: bool = False) -> bool:
    """True while new operations are recorded."""
    return acting(required).is_started()


@errors_only
def window(*, sample: int = 1, required: bool = False) -> AbstractContextManager[None]:
    """Records what the ``with`` block issues; changes nothing if recording is already on."""
    return _window(sample, required)


@contextmanager
def _window(sample: int, required: bool) -> Iterator[None]:
    is_ours = _begin(sample, required)
    try:
        yield
    finally:
        if is_ours:
            stop()


@errors_only
def _begin(sample: int, required: bool) -> bool:
    is_ours = acting(required).begin("window")
    if is_ours and sample != 1:
        start(sample=sample)
    return is_ours


@errors_only
def dump(path: Union[str, os.PathLike[str], None] = None, *, required: bool = False) -> None:
    """Copies the recording as it is now.

    ``path`` is a file that ends in ``.nscope`` and does not exist, or a directory, which is
    created. Without ``path`` the copy goes to a new directory beside the recording.
    """
    acting(required).dump(None if path is None else os.path.abspath(path))


@errors_only
def mark(name: str, *, required: bool = False) -> None:
    """Records a named mark at the current time."""
    acting(required).mark(name)


@errors_only
def set_step(step: int, *, required: bool = False) -> None:
    """Reports that training step ``step`` begins."""
    acting(required).set_step(step)


@errors_only
def set_role(comm_hash: int, role: str, *, required: bool = False) -> None:
    """Sets the role of a communicator, such as tp; ``ncclscope ls`` shows its hash."""
    acting(required).set_role(comm_hash, role)


@errors_only
def on_hang(
    function: Optional[Callable[[dict[str, Any]], None]], *, required: bool = False
) -> None:
    """Calls ``function`` when an operation of NCCL is stuck, and again when that is over.

    ``function`` gets the report as a dictionary (``docs/hang.md``; ``event`` is ``hung`` or
    ``recovered``) on a thread of the plugin. It cannot run while another thread holds Python's
    lock. With ``None`` the calls end.
    """
    plugin = acting(required)
    if function is None:
        plugin.on_hang(None)
        return
    plugin.on_hang(lambda text: function(json.loads(text)))
    # No thread may enter Python after the interpreter has ended.
    atexit.register(plugin.on_hang, None)


@errors_only
def simulate_hang(seconds: float, *, required: bool = False) -> None:
    """A drill: a made-up operation stands still, and the watchdog reports it."""
    acting(required).simulate_hang(seconds)
