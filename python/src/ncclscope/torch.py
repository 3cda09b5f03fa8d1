# SPDX-License-Identifier: Apache-2.0
"""NCCL's events in the traces of ``torch.profiler``.

Call once before the first profile:

    import ncclscope.torch
    ncclscope.torch.kineto_attach()

From then on the trace of every ``with torch.profiler.profile(...)`` has the tracks of NCCL, in a
process row of their own, and their API calls carry the ``External id`` of the operator that made
them. To add the tracks to one profiler with any supported torch:

    prof = ncclscope.torch.profile_hook(torch.profiler.profile(...))
    with prof:
        ...
    prof.export_chrome_trace("trace.json")
"""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from . import _abort, _kineto, on_hang
from ._abort import Hung
from ._plugin import OFF, SYSTEM, Error, NoPlugin, acting, errors_only, library

__all__ = [
    "Hung",
    "WindowObserver",
    "abort_on_hang",
    "ask_external_ids",
    "kineto_attach",
    "merge_into",
    "profile_hook",
]

_Profiler = TypeVar("_Profiler")

_session: Optional[_kineto.Session] = None
_lock = threading.Lock()


def kineto_attach(*, required: bool = False) -> bool:
    """Adds NCCL's events to every later profile, through a session of our own inside Kineto.

    A window of the plugin begins and ends with each profile, unless recording is already on. The
    first call on a machine compiles a small file against the headers in torch (some seconds, stored
    in ``~/.cache/ncclscope``). If that fails, the function warns with the reason and returns false,
    or raises `ncclscope.Error` with ``required``; `profile_hook` works in this case, too.
    """
    global _session
    try:
        with _lock:
            plugin = acting(required)
            if isinstance(plugin, NoPlugin):
                return False
            session = _session or _kineto.Session()
            session.attach(plugin)
            _session = session
    except Exception as error:
        if required:
            if isinstance(error, Error):
                raise
            raise Error(SYSTEM, str(error)) from error
        warnings.warn(f"profiles do not show NCCL live: {error}", stacklevel=2)
        return False
    return True


@errors_only
def abort_on_hang(listener: Optional[Callable[[dict[str, Any]], None]] = None) -> None:
    """Makes a job that hangs in NCCL raise `Hung` instead of waiting.

    When the plugin's watchdog reports a stuck operation (``NCCLSCOPE_HANG_SEC``), this aborts all
    NCCL process groups of this process and raises `Hung` in the thread that called this function,
    usually the main one: at once, or as soon as its current call into torch or CUDA returns, which
    the abort causes. Drills abort nothing. ``listener`` gets every report, as with
    `ncclscope.on_hang`, whose listener this function replaces. It needs torch 2.6 or later.
    """
    _abort.check_torch()
    if isinstance(acting(), NoPlugin):
        return
    guard = _abort.Guard(threading.get_ident(), listener)
    on_hang(guard.told)
    guard.start()


@errors_only
def ask_external_ids() -> bool:
    """Makes NCCL's API calls carry torch's External ids without a session of ours in Kineto.

    Torch provides the current id from 2.15 on, while its "cuspy" profiler runs; with an earlier
    torch this returns false. Do not call it together with `kineto_attach`.
    """
    torch_cpu = _torch_library()
    name = "_ZN5torch8profiler4impl22cuspyCurrentExternalIdEv"
    if torch_cpu is None or not hasattr(torch_cpu, name):
        return False
    address = ctypes.cast(getattr(torch_cpu, name), ctypes.c_void_p).value
    plugin = acting()
    plugin.ask_external_id(address)
    return not isinstance(plugin, NoPlugin)


def _torch_library() -> Optional[ctypes.CDLL]:
    import torch

    path = Path(torch.__file__).parent / "lib/libtorch_cpu.so"
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


class WindowObserver:
    """Begins and ends a window of the plugin with each profile.

    ``torch.profiler.profile(execution_trace_observer=...)`` takes it; ``inner`` is another
    observer, which gets the same calls. A recording that is already on continues.
    """

    def __init__(self, inner: Any = None) -> None:
        self._inner = inner
        self._is_ours = False

    def start(self) -> None:
        """A profile begins."""
        try:
            self._is_ours = acting().begin("torch.profiler")
        except Error as error:
            warnings.warn(f"this profile does not record NCCL: {error}", stacklevel=2)
        if self._inner is not None:
            self._inner.start()

    def stop(self) -> None:
        """The profile ends."""
        if self._inner is not None:
            self._inner.stop()
        if self._is_ours:
            self._is_ours = False
            try:
                library().stop()
            except Error as error:
                if error.code != OFF:
                    warnings.warn(f"the recording of NCCL continues: {error}", stacklevel=2)

    def cleanup(self) -> None:
        """The profiler is no longer used."""
        self.stop()
        if self._inner is not None:
            self._inner.cleanup()


def profile_hook(prof: _Profiler, *, live: bool = True) -> _Profiler:
    """Adds NCCL's events to the traces that a ``torch.profiler.profile`` exports.

    With ``live``, if `kineto_attach` succeeds, this does nothing more. Otherwise the plugin's
    windows follow the profiles, and ``export_chrome_trace``, which ``tensorboard_trace_handler``
    also calls, merges each file that it wrote with the recording. Call this before the profile
    begins; it returns ``prof``.
    """
    if live and kineto_attach():
        return prof
    if _session is None:
        try:
            ask_external_ids()
        except Error as error:
            warnings.warn(f"NCCL's API calls have no External ids: {error}", stacklevel=2)
    any_prof: Any = prof
    if hasattr(any_prof, "execution_trace_observer"):
        observer = any_prof.execution_trace_observer
        any_prof.execution_trace_observer = WindowObserver(observer)
    else:
        _follow(any_prof)
    any_prof.export_chrome_trace = _merging(any_prof.export_chrome_trace)
    return prof


def _follow(prof: Any) -> None:
    """Wraps the start and the end of a profile in a torch that has no observers (1.13)."""
    observer = WindowObserver()
    begin, end = prof.start_trace, prof.stop_trace

    def start_trace() -> None:
        observer.start()
        begin()

    def stop_trace() -> None:
        observer.stop()
        end()

    prof.start_trace, prof.stop_trace = start_trace, stop_trace
    # The schedule's table holds the original methods.
    for actions in getattr(prof, "action_map", {}).values():
        for at, action in enumerate(actions):
            if action == begin:
                actions[at] = start_trace
            elif action == end:
                actions[at] = stop_trace


def _merging(export: Callable[..., Any]) -> Callable[..., Any]:
    """An export that adds the tracks of NCCL to the file that it wrote."""

    @functools.wraps(export)
    def export_chrome_trace(path: Any, *args: Any, **kwargs: Any) -> Any:
        result = export(path, *args, **kwargs)
        try:
            merge_into(path)
        except Error as error:
            if error.code != OFF:
                warnings.warn(f"no NCCL tracks in {path}: {error}", stacklevel=2)
        return result

    return export_chrome_trace


@errors_only
def merge_into(trace: Any) -> None:
    """Adds the tracks of this process's recording to a trace that torch.profiler wrote."""
    file = Path(os.path.abspath(trace))
    with tempfile.TemporaryDirectory(prefix=".ncclscope-", dir=file.parent) as folder:
        merged = Path(folder, file.name)
        _kineto.merge(file, merged, folder)
        os.replace(merged, file)
