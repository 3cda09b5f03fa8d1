# SPDX-License-Identifier: Apache-2.0
"""Real torch and its own NCCL on the CPU stand-in: a job that hangs raises.

NCCLSCOPE_PLUGIN and NCCLSCOPE_TEST_CUDA (the stand-in) name files. It needs a C compiler.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from test_torch import NCCL

from ncclscope._plugin import variables

HERE = Path(__file__).parent
#: Seconds after which the watchdog reports.
LIMIT = 2


class Abort(unittest.TestCase):
    def test_a_stuck_kernel_ends_both_ranks_with_an_exception(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            driver = folder / "libcuda.so.1"
            build = ["cc", "-shared", "-fPIC", "-o", str(driver), str(HERE / "driver.c")]
            subprocess.run(build, check=True)
            ranks = [self.rank(number, folder) for number in range(2)]
            try:
                said = [rank.communicate(timeout=120)[0] for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
        for rank, text in zip(ranks, said):
            self.assertEqual(rank.returncode, 7, text)
            found = re.search(r"Hung after (\d+\.\d) s: \('hung', 2\) HANG: AllReduce 2 ", text)
            assert found is not None, text
            self.assertGreaterEqual(float(found[1]), LIMIT)
            self.assertLess(float(found[1]), LIMIT + 8)

    def rank(self, number: int, folder: Path) -> "subprocess.Popen[str]":
        kept = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
        cuda = os.environ["NCCLSCOPE_TEST_CUDA"]
        kept.update(NCCL, NCCL_HOSTID=f"host{number}", LD_PRELOAD=cuda)
        kept.update(variables(before=str(folder)), CPU_CUDA_FAULTS="stuck:rank=1,launch=2,step=3")
        kept.update(NCCLSCOPE_DIR=str(folder / "run"), NCCLSCOPE_HANG_SEC=str(LIMIT))
        command = [sys.executable, str(HERE / "abort_rank.py"), str(number), str(folder)]
        out = subprocess.PIPE
        return subprocess.Popen(command, env=kept, stdout=out, stderr=subprocess.STDOUT, text=True)


if __name__ == "__main__":
    print(f"torch {torch.__version__}", flush=True)
    unittest.main()
