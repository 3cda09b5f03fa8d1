# SPDX-License-Identifier: Apache-2.0
"""Data parallel training of two ranks on one GPU, with gradients in four buckets of one size.

The second argument says what rank 1 does: `even`, as rank 0; `late`, more work in each step;
`stops`, it calls NCCL no more from the middle on. Rank 0 prints the median of the steps' times.
"""
import sys
import time

import two_ranks

FOLDER, MODE, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
WIDTH, BUCKETS = 1024, 4


def rank(number):
    import torch
    import torch.distributed as dist
    from torch.nn import Linear, ReLU, Sequential
    from torch.nn.parallel import DistributedDataParallel

    torch.cuda.set_device(0)
    store = f"file://{FOLDER}/store"
    dist.init_process_group("nccl", init_method=store, rank=number, world_size=2)
    layers = [layer for _ in range(BUCKETS) for layer in (Linear(WIDTH, WIDTH), ReLU())]
    model = DistributedDataParallel(Sequential(*layers).cuda(), device_ids=[0], bucket_cap_mb=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(256, WIDTH, device="cuda")
    more = torch.randn(4 * WIDTH, 4 * WIDTH, device="cuda")
    times = []
    for step in range(STEPS):
        begin = time.perf_counter()
        if number == 1 and MODE == "late":
            for _ in range(20):
                more @ more
        if number == 1 and MODE == "stops" and step == STEPS // 2:
            print("stops", flush=True)
            time.sleep(60)
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    if number == 0:
        # The first steps connect the ranks and build the buckets.
        times = sorted(times[STEPS // 4 :])
        print("step_ms", times[len(times) // 2] * 1e3, flush=True)
    dist.destroy_process_group()


two_ranks.run(rank, arguments=3)
