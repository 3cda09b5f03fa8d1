# SPDX-License-Identifier: Apache-2.0
"""Two ranks on one GPU under torch.profiler; each writes its trace."""
import ctypes
import sys

import two_ranks

FOLDER = sys.argv[1]


def rank(number):
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.set_device(0)
    torch.ones(1, device="cuda").sum().item()
    key = ctypes.c_uint()
    ctypes.CDLL(None).pthread_key_create(ctypes.byref(key), None)
    print("key", key.value, flush=True)
    store = f"file://{FOLDER}/store"
    dist.init_process_group("nccl", init_method=store, rank=number, world_size=2)
    data = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(data)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(5):
            dist.all_reduce(data)
        torch.cuda.synchronize()
    profiler.export_chrome_trace(f"{FOLDER}/trace{number}.json")
    dist.destroy_process_group()


two_ranks.run(rank, arguments=1)
