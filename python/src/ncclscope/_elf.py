# SPDX-License-Identifier: Apache-2.0
"""Checks whether a file is a complete profiler plugin for this machine. The loader maps what the
headers describe, and a file that is shorter kills the job."""

from __future__ import annotations

import mmap
import os
import re
import struct
from pathlib import Path
from typing import Optional

_LOAD = 1


def fault(path: Path) -> Optional[str]:
    """Describes what is wrong with the file, as the end of a sentence about it."""
    try:
        with open(path, "rb") as file, open("/proc/self/exe", "rb") as own:
            length = os.fstat(file.fileno()).st_size
            if length < 64:
                return "is not a shared library: it has no ELF header"
            with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ) as data:
                return _fault_of(data, length, own.read(20))
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _fault_of(data: mmap.mmap, length: int, own: bytes) -> Optional[str]:
    if data[:4] != own[:4]:
        return "is not a shared library: it has no ELF header"
    # The word width, the byte order and the machine.
    if (data[4:6], data[18:20]) != (own[4:6], own[18:20]):
        return "is for another kind of machine"
    (start,) = struct.unpack_from("=Q", data, 32)
    size, count = struct.unpack_from("=HH", data, 54)
    end = start + size * count
    if end <= length and size >= 40:
        headers = (struct.unpack_from("=IIQQQQ", data, start + i * size) for i in range(count))
        ends = [at + bytes_ for kind, _, at, _, _, bytes_ in headers if kind == _LOAD]
        if not ends:
            return "is not a shared library: it has no loadable segment"
        end = max(ends)
    if end > length:
        return f"is truncated to {length} of {end} bytes: copy it again"
    if not re.search(rb"\0ncclProfiler_v[1-9]", data):
        return "is not an NCCL profiler plugin: it has no symbol ncclProfiler_v*"
    return None
