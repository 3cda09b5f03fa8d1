# SPDX-License-Identifier: Apache-2.0
"""A rank of real NCCL on the CPU stand-in, within a Python process; see testing/rig/src/nccl.rs."""

import ctypes
import os
import time
from pathlib import Path
from typing import Optional

FLOAT, SUM = 7, 0
DEFAULT = 4  # cudaMemcpyDefault
NON_BLOCKING = 1


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def loaded(name: str) -> Optional[str]:
    """The file of a library in this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        files = {"/" + line.rstrip("\n").partition("/")[2] for line in maps if name in line}
    return min(files, default=None)


class Rank:
    """Loads NCCL, and exchanges the id with the other ranks through a file."""

    def __init__(self, cuda: str, nccl: str, rank: int, ranks: int, meeting: Path) -> None:
        # Torch has a CUDA runtime in the global scope, which NCCL must not use instead of the
        # stand-in's.
        self.cuda = ctypes.CDLL(cuda, mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
        open_nccl = self.cuda.cpucuda_open_nccl
        open_nccl.restype = ctypes.c_void_p
        # Opens the loaded NCCL, which is torch's own if torch contains one.
        nccl = loaded("libnccl.so") or nccl
        handle = open_nccl(nccl.encode())
        assert handle, f"{nccl} cannot run on the stand-in"
        self.nccl = ctypes.CDLL(nccl, handle=handle)
        self.stream = ctypes.c_void_p()
        self.check(self.cuda.cudaSetDevice(0))
        self.check(self.cuda.cudaStreamCreateWithFlags(ctypes.byref(self.stream), NON_BLOCKING))
        self.comm = ctypes.c_void_p()
        unique = self.unique_id(rank, meeting)
        init = self.nccl.ncclCommInitRank
        init.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        self.check(init(ctypes.byref(self.comm), ranks, unique, rank))

    def check(self, status: int) -> None:
        assert status == 0, f"CUDA or NCCL says {status}"

    def unique_id(self, rank: int, meeting: Path) -> UniqueId:
        unique = UniqueId()
        if rank == 0:
            self.check(self.nccl.ncclGetUniqueId(ctypes.byref(unique)))
            whole = meeting.with_suffix(".tmp")
            whole.write_bytes(bytes(unique))
            whole.rename(meeting)
            return unique
        while not meeting.exists():
            time.sleep(0.005)
        return UniqueId.from_buffer_copy(meeting.read_bytes())

    def all_reduce(self, values: list[float]) -> list[float]:
        """The sum over the ranks."""
        host = (ctypes.c_float * len(values))(*values)
        buffer, size = ctypes.c_void_p(), ctypes.c_size_t(ctypes.sizeof(host))
        self.check(self.cuda.cudaMalloc(ctypes.byref(buffer), size))
        self.check(self.cuda.cudaMemcpy(buffer, host, size, DEFAULT))
        count = ctypes.c_size_t(len(values))
        call = self.nccl.ncclAllReduce
        self.check(call(buffer, buffer, count, FLOAT, SUM, self.comm, self.stream))
        self.check(self.cuda.cudaStreamSynchronize(self.stream))
        self.check(self.cuda.cudaMemcpy(host, buffer, size, DEFAULT))
        self.check(self.cuda.cudaFree(buffer))
        return list(host)

    def destroy(self) -> None:
        self.check(self.nccl.ncclCommDestroy(self.comm))
