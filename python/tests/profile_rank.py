# SPDX-License-Identifier: Apache-2.0
"""One of two ranks that profile themselves: MODE RANK DIR. test_torch.py runs it."""

import ctypes
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nccl_rank import Rank
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import ncclscope
import ncclscope.torch

CPU = [ProfilerActivity.CPU]
#: Floats of each operation, so that each can be told from the others.
BEFORE, INSIDE, AFTER = 1000, 100_000, 3000
# : An external id that torch reports from 2.15 on.
NOTED = 77


class Operator:
    """An operator of torch that calls NCCL, like those of torch.distributed."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.library = torch.library.Library("nccl_test", "DEF")
        self.library.define("reduce(Tensor like, int count) -> Tensor")
        self.library.impl("reduce", self.call, "CPU")

    def call(self, like: torch.Tensor, count: int) -> torch.Tensor:
        with told():
            assert self.rank.all_reduce([1.0] * count)[-1] == 2.0
        return like.clone()


@contextmanager
def told() -> Iterator[None]:
    """Torch's own record of an External id, as its "cuspy" profiler writes it."""
    torch_cpu = ncclscope.torch._torch_library()
    space = "_ZN5torch8profiler4impl"
    if not hasattr(torch_cpu, f"{space}21cuspyNoteExternalPushEm"):
        yield
        return
    getattr(torch_cpu, f"{space}21cuspyNoteExternalPushEm")(ctypes.c_uint64(NOTED))
    yield
    getattr(torch_cpu, f"{space}20cuspyNoteExternalPopEv")()


def reduce(count: int) -> None:
    with record_function(f"reduce {count}"):
        torch.ops.nccl_test.reduce(torch.ones(1), count)


def plain(out: Path) -> None:
    """A profile without any ncclscope code."""
    assert ncclscope.torch.kineto_attach(required=True)
    reduce(BEFORE)
    with profile(activities=CPU) as prof:
        assert ncclscope.is_started()
        torch.ones(10) + 1
        reduce(INSIDE)
    assert not ncclscope.is_started()
    reduce(AFTER)
    prof.export_chrome_trace(str(out / "plain.json"))
    # The profile must not end a window that the application began.
    with ncclscope.window():
        with profile(activities=CPU) as prof:
            reduce(INSIDE + 1)
        reduce(AFTER + 1)
        assert ncclscope.is_started()
    prof.export_chrome_trace(str(out / "again.json"))
    # Nothing is recorded after the proxy of the last operation has finished.
    time.sleep(0.3)
    with profile(activities=CPU) as prof:
        torch.ones(10) + 1
    prof.export_chrome_trace(str(out / "empty.json"))


def hook(out: Path, live: bool) -> None:
    """Two profiles of a schedule, with `profile_hook`."""
    seen = []

    def ready(prof: Any) -> None:
        # Before the export: the trace must not hold events after the profile.
        reduce(AFTER)
        seen.append(ncclscope.is_started())
        prof.export_chrome_trace(str(out / f"hook{len(seen)}.json"))

    plan = schedule(wait=1, warmup=0, active=1, repeat=2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        prof = profile(activities=CPU, schedule=plan, on_trace_ready=ready)
        assert ncclscope.torch.profile_hook(prof, live=live) is prof
        with prof:
            for step in range(4):
                reduce(INSIDE + step)
                prof.step()
    assert seen == [False, False], seen
    ours = [str(w.message) for w in said if "NCCL" in str(w.message)]
    (out / "said.json").write_text(json.dumps(ours))


def on_demand(folder: Path) -> None:
    """Works until it gets a request to stop, and accepts on-demand profiles."""
    is_told = torch.zeros(1)
    while not is_told.item():
        reduce(INSIDE)
        time.sleep(0.05)
        # All ranks end after the same operation.
        is_told = torch.tensor([float((folder / "stop").exists())])
        dist.all_reduce(is_told, dist.ReduceOp.MAX)


def early() -> None:
    """Windows before the first communicator, which starts its recording as usual."""
    ncclscope.torch.kineto_attach()
    with profile(activities=CPU), ncclscope.window():
        torch.ones(10) + 1
    assert not ncclscope.is_started()


def run(mode: str, number: int, folder: Path) -> None:
    """A rank, from its first communicator to its last."""
    dist.init_process_group("gloo", f"file://{folder}/gloo", rank=number, world_size=2)
    out = folder / str(number)
    out.mkdir()
    files = os.environ["NCCLSCOPE_TEST_CUDA"], os.environ["NCCLSCOPE_TEST_NCCL"]
    if mode == "early":
        early()
    rank = Rank(*files, number, 2, folder / "id")
    operator = Operator(rank)
    if mode == "plain":
        plain(out)
    elif mode == "early":
        reduce(BEFORE)
        assert ncclscope.is_started()
    elif mode == "demand":
        on_demand(folder)
    else:
        hook(out, mode == "live")
    operator.rank.destroy()
    dist.barrier()


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
