# SPDX-License-Identifier: Apache-2.0
"""Data parallel training of two ranks on one GPU, with gradients in four buckets of one size.

The second argument says what rank 1 does: `even`, as rank 0; `late`, more work in each step;
`stops`, it calls NCCL no more from the middle on. Rank 0 prints the median of the steps' times.
The ranks have different NCCL_HOSTID, so that NCCL takes them for two hosts and lets them share
the GPU.
"""
import os
import signal
import subprocess
import sys
import time

FOLDER, MODE, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
WIDTH, BUCKETS = 1024, 4


def rank(number):
    import torch
    import torch.distributed as dist
    from torch.nn import Linear, ReLU, Sequential
    from torch.nn.parallel import DistributedDataParallel

    # Nothing of the kit may go on using the GPU.
    signal.alarm(90)
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


if len(sys.argv) > 4:
    rank(int(sys.argv[4]))
else:
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], str(number)],
            env={**os.environ, "NCCL_HOSTID": f"host{number}", "OMP_NUM_THREADS": "2"},
        )
        for number in range(2)
    ]

    def end(*_):
        for process in ranks:
            process.kill()
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    sys.exit(max(process.wait() for process in ranks))
