# SPDX-License-Identifier: Apache-2.0
"""One of two ranks of torch's own NCCL; the kernel of one of them gets stuck: RANK DIR.
test_abort.py runs it."""

import ctypes
import importlib.util
import os
import sys
import time
import warnings
from pathlib import Path

FLOATS = 1 << 20


def open_nccl() -> None:
    """Opens torch's own NCCL on the stand-in, before torch loads it."""
    spec = importlib.util.find_spec("nvidia")
    assert spec is not None and spec.submodule_search_locations
    [nccl, *_] = [
        file
        for place in spec.submodule_search_locations
        for file in Path(place).glob("*/lib/libnccl.so.2")
    ]
    cuda = ctypes.CDLL(os.environ["NCCLSCOPE_TEST_CUDA"])
    cuda.cpucuda_open_nccl.restype = ctypes.c_void_p
    assert cuda.cpucuda_open_nccl(str(nccl).encode()), f"{nccl} cannot run on the stand-in"


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    open_nccl()
    # Torch warns that the stand-in's driver is old.
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist

    import ncclscope.torch

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", f"file://{folder}/meeting", rank=rank, world_size=2)
    dist.new_group([0, 1])
    data = torch.empty(FLOATS, device="cuda")
    data.copy_(torch.ones(FLOATS))
    dist.all_reduce(data)
    torch.cuda.synchronize()
    assert data.cpu()[-1].item() == 2.0
    reports = []
    ncclscope.torch.abort_on_hang(reports.append)
    start = time.monotonic()
    try:
        dist.all_reduce(data)
        torch.cuda.synchronize()
        print("no exception", flush=True)
    except ncclscope.torch.Hung as hung:
        took = time.monotonic() - start
        event = reports[0]["event"], reports[0]["operation"]["number"]
        print(f"{type(hung).__name__} after {took:.1f} s: {event} {hung}", flush=True)
        sys.exit(7)


if __name__ == "__main__":
    main()
