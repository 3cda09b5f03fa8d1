# SPDX-License-Identifier: Apache-2.0
"""Forks ranks of profile_rank.py: torch, which takes 2.5 s to import, is imported once.

For each line of JSON on standard input (`mode`, `folder`, and `ranks`, the environment variables of
each rank), it runs the ranks to their end and prints their exit codes. What rank N prints is in the
file `said-N` of the folder. test_torch.py starts it.
"""

import ctypes
import json
import os
import sys
import traceback
from pathlib import Path

import profile_rank


def rank(mode: str, number: int, folder: Path, variables: dict[str, str]) -> int:
    """The process id of a new rank."""
    pid = os.fork()
    if pid != 0:
        return pid
    code = 1
    try:
        with open(folder / f"said-{number}", "wb") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        os.environ.clear()
        os.environ.update(variables)
        profile_rank.run(mode, number, folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # The end of a program, at which the plugin closes its recording.
    ctypes.CDLL(None).exit(code)
    raise AssertionError("the process has ended")


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        folder = Path(job["folder"])
        pids = [rank(job["mode"], at, folder, own) for at, own in enumerate(job["ranks"])]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
