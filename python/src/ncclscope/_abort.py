# SPDX-License-Identifier: Apache-2.0
"""Ends a job that hangs in NCCL, by aborting torch's process groups; see `abort_on_hang`."""

from __future__ import annotations

import atexit
import ctypes
import threading
from typing import Any, Callable, Optional

from ._plugin import SYSTEM, Error

Hang = dict[str, Any]

#: How long the exit of Python waits for an abort, in seconds.
EXIT_S = 30
#: How long the abort of other groups waits for that of the group that hangs, in seconds.
FIRST_S = 3


class Hung(RuntimeError):
    """An operation of NCCL was stuck, and the communicators were aborted.

    The text is the first line of the watchdog's report. The results of the operation are invalid.
    """

    #: The watchdog's report (``docs/hang.md``).
    report: Optional[Hang] = None

    def __init__(self, *args: object) -> None:
        # Raising an exception in another thread takes a class and no arguments.
        report = type(self).report
        super().__init__(*(args or (report["text"][:1] if report is not None else ())))


class Guard:
    """Waits for a report, then aborts the process groups."""

    def __init__(self, thread: int, inner: Optional[Callable[[Hang], None]]) -> None:
        self._thread = thread
        self._inner = inner
        self._report: Optional[Hang] = None
        self._is_told = threading.Event()
        # Uses a thread of its own: aborting takes long, and the plugin's thread must continue to
        # watch.
        self._own = threading.Thread(target=self._wait, name="ncclscope-abort", daemon=True)

    def start(self) -> None:
        self._own.start()
        atexit.register(self._end)

    def _end(self) -> None:
        """Runs before Python ends: a thread that returns to Python later crashes the process."""
        if self._is_told.is_set():
            self._own.join(EXIT_S)

    def told(self, hang: Hang) -> None:
        """The listener of `ncclscope.on_hang`."""
        if hang["event"] == "hung" and not hang["drill"] and self._report is None:
            self._report = hang
            self._is_told.set()
        if self._inner is not None:
            self._inner(hang)

    def _wait(self) -> None:
        self._is_told.wait()
        Hung.report = self._report
        # Before the abort: the thread must not continue with results that were not computed.
        raise_in(self._thread, Hung)
        abort_groups((self._report or {}).get("comm_name"))


def raise_in(thread: int, what: type[BaseException]) -> None:
    """Raises an exception in another thread as soon as that thread runs Python again."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(what))


def backends(first: Optional[str]) -> list[Any]:
    """The NCCL backends of this process's groups, each once, beginning with group ``first``."""
    import torch
    from torch.distributed import distributed_c10d

    names = distributed_c10d._world.pg_names
    found: dict[int, Any] = {}
    for group in sorted(list(names), key=lambda group: names.get(group) != first):
        try:
            backend = group._get_backend(torch.device("cuda"))
        except RuntimeError:
            continue
        if hasattr(backend, "abort") and "NCCL" in type(backend).__name__:
            found[id(backend)] = backend
    return list(found.values())


def abort_groups(first: Optional[str]) -> None:
    """Aborts all groups, ``first`` first.

    The abort of one communicator waits for the GPU, and therefore for the kernel that is stuck in
    another communicator (pytorch#119797). Torch 2.15 makes one call into NCCL at a time, so that it
    must begin with the stuck communicator, which has the group's name; other releases abort all at
    the same time.
    """
    threads = [threading.Thread(target=b.abort, daemon=True) for b in backends(first)]
    for thread in threads:
        thread.start()
        if thread is threads[0]:
            thread.join(FIRST_S)
    for thread in threads:
        thread.join()


def check_torch() -> None:
    """Raises `Error` if this torch cannot abort a process group."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_nccl_available():
        raise Error(SYSTEM, "this torch has no NCCL")
    if not hasattr(dist.ProcessGroupNCCL, "abort"):
        raise Error(SYSTEM, "this torch cannot abort a process group: use 2.6 or later")
