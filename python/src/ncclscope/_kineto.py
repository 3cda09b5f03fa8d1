# SPDX-License-Identifier: Apache-2.0
"""NCCL's tracks in the traces that Kineto writes: while it collects, and afterwards.

Both show the same tracks, those of ``ncclscope merge``. Our session inside Kineto
(kineto_session.cpp) requests them when a profile ends; if there can be no session, the written file
is merged with the recording.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any, Optional

from . import _tool
from ._plugin import BAD, OFF, SYSTEM, Error, Library, is_off_at_first, library

SOURCE = Path(__file__).with_name("kineto_session.cpp")
# A larger recording would delay the end of a profile for too long.
LARGEST = 2 << 30

_Slices = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)


class _Hooks(ctypes.Structure):
    _fields_ = [
        ("is_started", ctypes.c_void_p),
        ("mark", ctypes.c_void_p),
        ("start", ctypes.c_void_p),
        ("stop", ctypes.c_void_p),
        ("push", ctypes.c_void_p),
        ("pop", ctypes.c_void_p),
        ("slices", _Slices),
        ("is_off_at_first", ctypes.c_int),
    ]


class Session:
    """Our profiler inside Kineto. The process has one, from the first attachment on."""

    def __init__(self) -> None:
        self.c = ctypes.CDLL(str(build()))
        number, text = ctypes.c_int64, ctypes.c_char_p
        self.c.ncclscope_kineto_attach.argtypes = [ctypes.c_void_p]
        self.c.ncclscope_kineto_process.argtypes = [number, number, text, text]
        self.c.ncclscope_kineto_lane.argtypes = [number, text]
        self.c.ncclscope_kineto_slice.argtypes = [
            number,
            number,
            number,
            text,
            ctypes.POINTER(ctypes.c_char_p),
        ]
        for name in ("attach", "process", "lane", "slice"):
            getattr(self.c, f"ncclscope_kineto_{name}").restype = None
        self.slices = _Slices(self.tell)
        self.plugin: Optional[Library] = None

    def attach(self, plugin: Library) -> None:
        if self.plugin is plugin:
            return
        if self.plugin is None:
            # Kineto may collect on a thread of its own while the interpreter ends.
            atexit.register(self.c.ncclscope_kineto_attach, None)
        self.plugin = plugin
        hooks = _Hooks(
            plugin.address("ncclscope_is_started"),
            plugin.address("ncclscope_mark"),
            plugin.address("ncclscope_start"),
            plugin.address("ncclscope_stop"),
            plugin.address("ncclscope_push_external_id"),
            plugin.address("ncclscope_pop_external_id"),
            self.slices,
            is_off_at_first(),
        )
        # The session pushes ids from now on, so that the function is not needed.
        plugin.ask_external_id(None)
        self.c.ncclscope_kineto_attach(ctypes.byref(hooks))

    def tell(self, start_ns: int, end_ns: int) -> None:
        """Passes the tracks of a time range to Kineto, which calls this: it must not raise."""
        try:
            self.tell_events(lanes(start_ns, end_ns), start_ns)
        except Error as error:
            if error.code != OFF:
                warnings.warn(f"no NCCL tracks in this profile: {error}", stacklevel=1)
        except Exception as error:  # noqa: BLE001
            warnings.warn(f"no NCCL tracks in this profile: {error!r}", stacklevel=1)

    def tell_events(self, events: list[dict[str, Any]], base_ns: int) -> None:
        if not events:
            return
        about = {event["name"]: event["args"] for event in events if event["ph"] == "M"}
        self.c.ncclscope_kineto_process(
            events[0]["pid"],
            about.get("process_sort_index", {}).get("sort_index", 0),
            str(about.get("process_name", {}).get("name", "NCCL")).encode(),
            b"",
        )
        for event in events:
            if event["name"] == "thread_name":
                self.c.ncclscope_kineto_lane(event["tid"], event["args"]["name"].encode())
            elif event["ph"] == "X":
                begin = base_ns + round(event["ts"] * 1000)
                self.c.ncclscope_kineto_slice(
                    event["tid"],
                    begin,
                    begin + round(event["dur"] * 1000),
                    event["name"].encode(),
                    _strings(event.get("args", {})),
                )


def _strings(args: dict[str, Any]) -> Any:
    """Alternating names and values, for C."""
    words: list[Optional[bytes]] = []
    for name, value in args.items():
        # These describe how a slice was joined to a kernel; there are no kernels here.
        if not name.startswith("join_"):
            words += [name.encode(), json.dumps(value).encode()]
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)


def lanes(start_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """The recorded events of a time range (ns since 1970), relative to its start."""
    times = {"ts": 0, "dur": (end_ns - start_ns) / 1000}
    span = {"ph": "X", "cat": "Trace", "name": "window", "pid": "Spans", "tid": "window", **times}
    trace: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": start_ns}
    ranks = _ranks()
    if ranks is not None:
        trace["distributedInfo"] = {"rank": ranks[0], "world_size": ranks[1]}
    trace["traceEvents"] = [span]
    with tempfile.TemporaryDirectory(prefix="ncclscope-") as folder:
        (given, merged) = (Path(folder, name) for name in ("window.json", "merged.json"))
        given.write_text(json.dumps(trace))
        merge(given, merged, folder)
        with open(merged, encoding="utf-8") as file:
            return list(json.load(file)["traceEvents"])[1:]


def merge(trace: Path, merged: Path, folder: str) -> None:
    """Writes a trace with the tracks of this process's recording."""
    plugin = library()
    recording = Path(folder, "now.nscope")
    plugin.dump(str(recording))
    size = recording.stat().st_size
    if size > LARGEST:
        raise Error(
            SYSTEM,
            f"the recording has {size >> 20} MiB: merge it into the profile afterwards, with "
            "ncclscope merge --kineto",
        )
    tool = _tool.tool_path(plugin.path)
    _tool.run(tool, "merge", "--kineto", str(trace), str(recording), "-o", str(merged))


def _ranks() -> Optional[tuple[int, int]]:
    """This process's rank and the number of ranks, from torch.distributed."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return None


def _compiler() -> list[str]:
    """The C++ compiler, with the words around it that ``CXX`` may have, such as ccache or -m64."""
    names = ("c++", "g++", "clang++")
    command = os.environ.get("CXX") or next(filter(shutil.which, names), "")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Error(BAD, f"CXX is {command!r}, which no shell understands: {error}") from None
    if not words:
        raise Error(SYSTEM, "there is no C++ compiler: install g++, or name one in CXX")
    return words


def build() -> Path:
    """The session for the installed torch; compiled the first time (`~/.cache/ncclscope`)."""
    import torch

    root = Path(torch.__file__).parent
    include = root / "include"
    if not (include / "kineto/libkineto.h").is_file():
        raise Error(SYSTEM, f"torch {torch.__version__} does not contain the headers of Kineto")
    compiler = _compiler()
    abi = int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-DFMT_HEADER_ONLY"]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{include}", f"-L{root / 'lib'}"]
    if not (include / "fmt/format.h").is_file():
        flags.append(f"-I{SOURCE.parent / 'include'}")
    source = SOURCE.read_bytes()
    version = f"{torch.__version__} {torch.version.git_version} {sysconfig.get_platform()}"
    key = hashlib.sha256(repr((compiler, flags, version)).encode() + source).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ncclscope")
    file = cache / f"kineto-{torch.__version__}-{key}.so"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        # Several ranks of a host may compile at the same time: each compiles its own file, and the
        # last one stays.
        new = file.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
        command = [*compiler, *flags, str(SOURCE), "-ltorch_cpu", "-lc10", "-o", str(new)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError as error:
            raise Error(SYSTEM, f"cannot run {shlex.join(compiler)}: {error}") from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            first = next((line for line in said if "error" in line), "the compiler gave no reason")
            raise Error(
                SYSTEM,
                f"ncclscope does not compile with the headers of Kineto in torch "
                f"{torch.__version__}: {first}",
            )
        os.replace(new, file)
    return file
