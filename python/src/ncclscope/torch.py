# SPDX-License-Identifier: Apache-2.0
"""NCCL's inside in the traces of ``torch.profiler``.

Once before the first profile:

    import ncclscope.torch
    ncclscope.torch.kineto_attach()

From then on every ``with torch.profiler.profile(...)`` has the lanes of NCCL in its trace, in a
process row of their own, and their API calls carry the ``External id`` of the operator that made
them. For a profiler that should have them whatever this torch can do:

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
from ._plugin import OFF, SYSTEM, Error, library

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
    """Makes every profile from now on show NCCL, as its own session inside Kineto.

    A window of the plugin begins and ends with each profile, unless it records anyway. The first
    time on a machine this compiles a small file against the headers in torch (some seconds, kept
    in ``~/.cache/ncclscope``). Where that cannot be, it says why in a warning and returns false, or
    raises `ncclscope.Error` if it is ``required``; `profile_hook` works there, too.
    """
    global _session
    try:
        with _lock:
            plugin = library()
            session = _session or _kineto.Session()
            session.attach(plugin)
            _session = session
    except (Error, OSError) as error:
        if required:
            if isinstance(error, Error):
                raise
            raise Error(SYSTEM, str(error)) from error
        warnings.warn(f"NCCL is not shown live in profiles: {error}", stacklevel=2)
        return False
    return True


def abort_on_hang(listener: Optional[Callable[[dict[str, Any]], None]] = None) -> None:
    """Makes a job that hangs in NCCL raise `Hung` instead of waiting.

    When the plugin's watchdog reports a stuck operation (``NCCLSCOPE_HANG_SEC``), all NCCL process
    groups of this process are aborted, and the thread that called this, as a rule the main one,
    gets `Hung`: at once, or as soon as the call into torch or CUDA that it is in returns, which the
    abort brings about. Drills abort nothing. ``listener`` gets every report, as from
    `ncclscope.on_hang`, whose listener this takes the place of. Needs torch 2.6 or later.
    """
    _abort.check_torch()
    guard = _abort.Guard(threading.get_ident(), listener)
    on_hang(guard.told)
    guard.start()


def ask_external_ids() -> bool:
    """Makes NCCL's API calls carry torch's External ids where no session of ours is in Kineto.

    Torch tells the current one from 2.15 on, while its "cuspy" profiler runs; false with an earlier
    one. Not to be called beside `kineto_attach`.
    """
    torch_cpu = _torch_library()
    name = "_ZN5torch8profiler4impl22cuspyCurrentExternalIdEv"
    if torch_cpu is None or not hasattr(torch_cpu, name):
        return False
    address = ctypes.cast(getattr(torch_cpu, name), ctypes.c_void_p).value
    library().ask_external_id(address)
    return True


def _torch_library() -> Optional[ctypes.CDLL]:
    import torch

    path = Path(torch.__file__).parent / "lib/libtorch_cpu.so"
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


class WindowObserver:
    """Begins and ends a window of the plugin with each profile.

    It is what ``torch.profiler.profile(execution_trace_observer=...)`` takes; ``inner`` is another
    one that is told, too. What is recorded anyway goes on.
    """

    def __init__(self, inner: Any = None) -> None:
        self._inner = inner
        self._is_ours = False

    def start(self) -> None:
        """A profile begins."""
        try:
            self._is_ours = library().begin("torch.profiler")
        except Error as error:
            warnings.warn(f"NCCL is not recorded in this profile: {error}", stacklevel=2)
        if self._inner is not None:
            self._inner.start()

    def stop(self) -> None:
        """It ends."""
        if self._inner is not None:
            self._inner.stop()
        if self._is_ours:
            self._is_ours = False
            try:
                library().stop()
            except Error as error:
                if error.code != OFF:
                    warnings.warn(f"NCCL is still recorded: {error}", stacklevel=2)

    def cleanup(self) -> None:
        """The profiler is not used any more."""
        self.stop()
        if self._inner is not None:
            self._inner.cleanup()


def profile_hook(prof: _Profiler, *, live: bool = True) -> _Profiler:
    """Makes a ``torch.profiler.profile`` show NCCL in the traces that it exports.

    With ``live`` and where `kineto_attach` can be, that is all it does. Else the plugin's windows
    follow the profiles, and ``export_chrome_trace`` merges each file that it wrote with the
    recording; ``tensorboard_trace_handler`` calls it, too. Call this before the profile begins;
    returns ``prof``.
    """
    if live and kineto_attach():
        return prof
    if _session is None:
        ask_external_ids()
    any_prof: Any = prof
    if hasattr(any_prof, "execution_trace_observer"):
        observer = any_prof.execution_trace_observer
        any_prof.execution_trace_observer = WindowObserver(observer)
    else:
        _follow(any_prof)
    any_prof.export_chrome_trace = _merging(any_prof.export_chrome_trace)
    return prof


def _follow(prof: Any) -> None:
    """Wraps what begins and ends a profile, of a torch that has no observers (1.13)."""
    observer = WindowObserver()
    begin, end = prof.start_trace, prof.stop_trace

    def start_trace() -> None:
        observer.start()
        begin()

    def stop_trace() -> None:
        observer.stop()
        end()

    prof.start_trace, prof.stop_trace = start_trace, stop_trace
    # The schedule's table holds the methods as they were.
    for actions in getattr(prof, "action_map", {}).values():
        for at, action in enumerate(actions):
            if action == begin:
                actions[at] = start_trace
            elif action == end:
                actions[at] = stop_trace


def _merging(export: Callable[..., Any]) -> Callable[..., Any]:
    """An export that puts the lanes of NCCL into the file that it wrote."""

    @functools.wraps(export)
    def export_chrome_trace(path: Any, *args: Any, **kwargs: Any) -> Any:
        result = export(path, *args, **kwargs)
        try:
            merge_into(path)
        except Error as error:
            if error.code != OFF:
                warnings.warn(f"no NCCL lanes in {path}: {error}", stacklevel=2)
        return result

    return export_chrome_trace


def merge_into(trace: Any) -> None:
    """Puts the lanes of this process's recording into a trace that torch.profiler wrote."""
    file = Path(os.path.abspath(trace))
    with tempfile.TemporaryDirectory(prefix=".ncclscope-", dir=file.parent) as folder:
        merged = Path(folder, file.name)
        _kineto.merge(file, merged, folder)
        os.replace(merged, file)
