# SPDX-License-Identifier: Apache-2.0
"""Runs a script as two ranks on one GPU.

The ranks have different NCCL_HOSTID, so that NCCL takes them for two hosts and lets them share
the GPU. Nothing of the kit may go on using it: the ranks end with the process that starts them.
"""
import os
import signal
import subprocess
import sys


def run(rank, arguments):
    """Calls `rank` with 0 and 1, each in a process of the script, which has so many arguments."""
    if len(sys.argv) > 1 + arguments:
        signal.alarm(90)
        rank(int(sys.argv[1 + arguments]))
        return
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv, str(number)],
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
