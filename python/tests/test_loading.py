# SPDX-License-Identifier: Apache-2.0
"""Real NCCL in a Python process that started without any variable, and `ncclscope.load`.

NCCLSCOPE_PLUGIN and NCCLSCOPE_TEST_CUDA (the stand-in) name files, NCCLSCOPE_TEST_NCCL several,
apart by colons.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CODE = """if True:
    import os, sys
    from pathlib import Path
    from nccl_rank import Rank
    if sys.argv[3] == "load":
        import ncclscope
        ncclscope.load(sys.argv[2])
    rank = Rank(os.environ["NCCLSCOPE_TEST_CUDA"], sys.argv[1], 0, 1, Path(sys.argv[2], "id"))
    assert rank.all_reduce([2.0] * 100)[-1] == 2.0
    rank.destroy()
"""


class Loading(unittest.TestCase):
    def recordings(self, nccl: str, how: str) -> int:
        """The number of recordings that a process of one rank writes."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "LD_"))}
        kept.update(NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
        kept.update(NCCL_CUMEM_ENABLE="0", PYTHONPATH=os.pathsep.join(sys.path))
        with tempfile.TemporaryDirectory() as folder:
            kept.update(NCCLSCOPE_DIR=folder, XDG_CACHE_HOME=folder)
            command = [sys.executable, "-c", CODE, nccl, folder, how]
            done = subprocess.run(command, env=kept, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return len(list(Path(folder).glob("*.nscope")))

    def test_each_release_records_after_load_and_not_without(self) -> None:
        for nccl in os.environ["NCCLSCOPE_TEST_NCCL"].split(":"):
            with self.subTest(nccl):
                self.assertEqual(self.recordings(nccl, "load"), 1)
        self.assertEqual(self.recordings(nccl, "without"), 0)


if __name__ == "__main__":
    unittest.main()
