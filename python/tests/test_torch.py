# SPDX-License-Identifier: Apache-2.0
"""Profiles of real torch with real NCCL on the CPU stand-in and the plugin.

NCCLSCOPE_PLUGIN, NCCLSCOPE_TEST_CUDA (the stand-in) and NCCLSCOPE_TEST_NCCL name files. NCCL is
torch's own if torch contains one.
"""

import atexit
import functools
import importlib.metadata
import importlib.util
import json
import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Optional

import torch
from profile_rank import INSIDE, NOTED

from ncclscope._plugin import variables
from ncclscope._tool import tool_path

HERE = Path(__file__).parent
RELEASE = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
HAS_HEADERS = (Path(torch.__file__).parent / "include/kineto/libkineto.h").is_file()
# : Process numbers of ncclscope's tracks begin here.
FIRST_PID = 1 << 30


def nccl_release() -> tuple[int, ...]:
    """The version of torch's own NCCL, else of the given file."""
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            return tuple(int(part) for part in importlib.metadata.version(name).split("."))
        except importlib.metadata.PackageNotFoundError:
            continue
    return (2, 30, 7)


#: NCCL reports the calls of its API.
HAS_CALLS = nccl_release() >= (2, 28)

NCCL = {
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_PAT_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_NCHANNELS": "4",
    # A quarter of NCCL's own, because NCCL clears all buffers.
    "NCCL_BUFFSIZE": "1048576",
    "NCCL_LL128_BUFFSIZE": "1228800",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_P2P_LEVEL": "SYS",
}

Trace = dict[str, Any]


def environment(rank: int, folder: Path, **env: str) -> dict[str, str]:
    """The environment variables of a rank."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("NCCL_")}
    kept.update(NCCL, **variables(), NCCLSCOPE_START="off")
    kept.update(NCCLSCOPE_DIR=str(folder / "run"), NCCLSCOPE_CONTROL=str(folder / "control"))
    return {**kept, **env, "NCCL_HOSTID": f"host{rank}"}


@contextmanager
def running(mode: str, folder: Path, **env: str) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Two ranks, which must succeed, each a program of its own."""
    ranks = []
    for rank in range(2):
        command = [sys.executable, str(HERE / "profile_rank.py"), mode, str(rank), str(folder)]
        own = environment(rank, folder, **env)
        pipe = subprocess.PIPE
        ranks.append(subprocess.Popen(command, env=own, stdout=pipe, stderr=subprocess.STDOUT))
    try:
        yield ranks
        said = [rank.communicate(timeout=240)[0].decode(errors="replace") for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, text in zip(ranks, said):
        assert process.returncode == 0, f"{process.args!r}\n{text}"


@functools.cache
def forks() -> "subprocess.Popen[str]":
    """The process that forks ranks. The loader reads LD_LIBRARY_PATH when it starts."""
    command = [sys.executable, str(HERE / "forked_ranks.py")]
    pipe = subprocess.PIPE
    own = {**os.environ, **variables()}
    process = subprocess.Popen(command, env=own, stdin=pipe, stdout=pipe, text=True)
    atexit.register(process.kill)
    return process


def job(mode: str, folder: Path, **env: str) -> None:
    """Runs two ranks to their end, which must succeed."""
    process = forks()
    assert process.stdin and process.stdout
    ranks = [environment(rank, folder, **env) for rank in range(2)]
    print(json.dumps({"mode": mode, "folder": str(folder), "ranks": ranks}), file=process.stdin)
    process.stdin.flush()
    is_done, _, _ = select.select([process.stdout], [], [], 240)
    codes = json.loads(process.stdout.readline()) if is_done else "no end"
    said = [(folder / f"said-{rank}").read_text(errors="replace") for rank in range(2)]
    assert codes == [0, 0], f"{mode}: {codes}\n{said[0]}\n{said[1]}"


def load(file: Path) -> Trace:
    # An f64 does not have enough digits for ns since the trace's base.
    trace: Trace = json.loads(file.read_text(), parse_float=Decimal)
    return trace


def slices(trace: Trace) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def ours(trace: Trace) -> list[dict[str, Any]]:
    """The slices of all tracks; each has args, which may be empty."""
    found = [e for e in slices(trace) if isinstance(e["pid"], int) and e["pid"] >= FIRST_PID]
    for event in found:
        event.setdefault("args", {})
    return found


def operations(trace: Trace) -> list[int]:
    """The number of floats of each operation in the trace."""
    found = [event["args"]["bytes"] // 4 for event in ours(trace) if "nccl_seq" in event["args"]]
    return sorted(found)


def span(event: dict[str, Any]) -> tuple[int, int]:
    """Start and end in ns."""
    start = int(event["ts"] * 1000)
    return start, start + int(event["dur"] * 1000)


def annotation(trace: Trace, name: str) -> dict[str, Any]:
    [event] = [event for event in slices(trace) if event["name"] == name]
    return event


class Lanes(unittest.TestCase):
    """Checks the tracks of any trace."""

    def check_lanes(self, trace: Trace, rank: Optional[int]) -> None:
        lanes = defaultdict(list)
        for event in ours(trace):
            self.assertGreaterEqual(event["tid"], 1, event)
            self.assertNotEqual(event["cat"], "kernel", event)
            self.assertNotIn("stream", event["args"], event)
            self.assertFalse(event["name"].startswith("nccl"), event)
            lanes[event["pid"], event["tid"]].append(span(event))
        self.assertTrue(lanes)
        for lane, spans in lanes.items():
            open_ends: list[int] = []
            for start, end in sorted(spans, key=lambda it: (it[0], -it[1])):
                while open_ends and open_ends[-1] <= start:
                    open_ends.pop()
                self.assertTrue(not open_ends or end <= open_ends[-1], f"{lane} crosses")
                open_ends.append(end)
        told = [e for e in trace["traceEvents"] if e["ph"] == "M" and e["pid"] in dict(lanes)]
        self.assertFalse(told)
        [pid] = {pid for pid, _ in lanes}
        of_us = [e for e in trace["traceEvents"] if e["pid"] == pid and "args" in e]
        about = {e["name"]: e["args"] for e in of_us}
        number = "" if rank is None else f" rank {rank}"
        self.assertEqual(about["process_name"]["name"], f"NCCL{number} (ncclscope)")
        named = {
            event["tid"]: event["args"]["name"]
            for event in trace["traceEvents"]
            if event["name"] == "thread_name" and event["pid"] == pid
        }
        self.assertEqual(set(named), {tid for _, tid in lanes})
        expected = {"API calls", "Operations"} if HAS_CALLS else {"Operations"}
        self.assertTrue(expected <= set(named.values()), named)

    def check_call(self, trace: Trace, count: int) -> None:
        """The API call lies within the operator that made it, on one time line."""
        start, end = span(annotation(trace, f"reduce {count}"))
        calls = [event for event in ours(trace) if event["args"].get("count") == count]
        self.assertEqual(len(calls), 1 if HAS_CALLS else 0)
        if not calls:
            return
        first, last = span(calls[0])
        self.assertTrue(start < first <= last < end, (start, first, last, end))

    def external_id(self, trace: Trace, count: int) -> object:
        """The External id of the API call; `operator_id` is that of its operator, to compare."""
        calls = [event for event in ours(trace) if event["args"].get("count") == count]
        return calls[0]["args"].get("External id") if calls else None

    def operator_id(self, trace: Trace) -> object:
        if not HAS_CALLS:
            return None
        return annotation(trace, "nccl_test::reduce")["args"]["External id"]


@unittest.skipUnless(HAS_HEADERS, f"torch {torch.__version__} comes without Kineto's headers")
class Live(Lanes):
    folder: Path

    @classmethod
    def setUpClass(cls) -> None:
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)
        job("plain", cls.folder)

    def trace(self, name: str, rank: int) -> Trace:
        return load(self.folder / str(rank) / f"{name}.json")

    def test_a_plain_profile_has_the_lanes_of_its_time(self) -> None:
        for rank in range(2):
            trace = self.trace("plain", rank)
            self.assertEqual(operations(trace), [INSIDE])
            self.check_lanes(trace, rank)
            self.check_call(trace, INSIDE)
            self.assertEqual(self.external_id(trace, INSIDE), self.operator_id(trace))

    def test_what_was_recorded_anyway_goes_on(self) -> None:
        for rank in range(2):
            trace = self.trace("again", rank)
            self.assertEqual(operations(trace), [INSIDE + 1])
            self.check_lanes(trace, rank)
            self.check_call(trace, INSIDE + 1)

    def test_a_profile_without_nccl_is_as_ever(self) -> None:
        trace = self.trace("empty", 0)
        self.assertFalse(ours(trace))
        self.assertTrue([event for event in slices(trace) if event["name"] == "aten::ones"])

    def test_torch_finds_the_trace_valid(self) -> None:
        if RELEASE < (2, 15):
            self.skipTest("torch has no validator before 2.15")
        from torch.profiler._trace_validator import validate_trace

        for rank in range(2):
            for name in ("plain", "again", "empty"):
                file = self.folder / str(rank) / f"{name}.json"
                self.assertEqual(validate_trace(str(file)), (True, []))

    def test_hta_finds_the_overlap_that_it_found_without(self) -> None:
        if importlib.util.find_spec("hta") is None:
            if RELEASE >= (2, 15):
                self.assertIsNone(os.environ.get("NCCLSCOPE_REQUIRE_TORCH"), "it lacks HTA")
            self.skipTest("HolisticTraceAnalysis is not installed")
        overlaps = []
        for keep in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                for rank in range(2):
                    trace = with_kernels(self.trace("plain", rank), rank)
                    if not keep:
                        lanes = {id(event) for event in ours(trace)}
                        events = trace["traceEvents"]
                        trace["traceEvents"] = [e for e in events if id(e) not in lanes]
                    Path(folder, f"{rank}.json").write_text(json.dumps(trace, default=float))
                overlaps.append(overlap(folder))
        self.assertEqual(overlaps[0], overlaps[1])
        self.assertEqual(overlaps[0], [(0, 50.0), (1, 50.0)])


class Hook(Lanes):
    def check_hook(self, mode: str, warns: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            job(mode, folder)
            for rank in range(2):
                said = load(folder / str(rank) / "said.json")
                self.assertEqual(len(said), 1 if warns else 0, said)
                self.assertIn(warns, "".join(said))
                for cycle in (1, 2):
                    trace = load(folder / str(rank) / f"hook{cycle}.json")
                    # The second step of each cycle of two steps.
                    count = INSIDE + 2 * cycle - 1
                    self.assertEqual(operations(trace), [count])
                    self.check_lanes(trace, rank if "distributedInfo" in trace else None)
                    self.check_call(trace, count)
                    told: object = NOTED if RELEASE >= (2, 15) else None
                    if mode == "live" and HAS_HEADERS:
                        told = self.operator_id(trace)
                    self.assertEqual(self.external_id(trace, count), told)

    def test_the_exported_files_are_merged(self) -> None:
        self.check_hook("after", "")

    def test_with_a_session_or_else_without(self) -> None:
        self.check_hook("live", "" if HAS_HEADERS else "does not contain the headers of Kineto")


@unittest.skipIf(RELEASE < (2,), f"torch {torch.__version__} asks no daemon")
class OnDemand(Lanes):
    def test_a_snapshot_makes_torch_profile_the_same_time(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder, shot = Path(name), Path(name, "shot")
            sockets = {"KINETO_IPC_SOCKET_DIR": name}
            with running("demand", folder, KINETO_USE_DAEMON="1", **sockets) as ranks:
                pids = [rank.pid for rank in ranks]
                self.wait_for(folder, pids)
                self.check_refusals(folder)
                args = ("snapshot", "--all", "--for", "2s", "--kineto", "-o", str(shot))
                done = self.tool(folder, *args)
                (folder / "stop").touch()
            self.assertEqual(done.returncode, 0, done.stderr)
            files = [shot / f"kineto-{pid}.json" for pid in pids]
            self.assertTrue(set(map(str, files)) <= set(done.stdout.split()), done.stdout)
            for pid, file in zip(pids, files):
                [recording] = shot.glob(f"*-{pid}.nscope")
                merged = str(folder / file.name)
                done = self.tool(
                    folder, "merge", "--kineto", str(file), str(recording), "-o", merged
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                trace = load(Path(merged))
                self.check_lanes(trace, None)
                # One window: torch and the plugin recorded the same operations, except at its ends.
                operators = [e for e in slices(trace) if e["name"] == "nccl_test::reduce"]
                # A busy machine runs a few in two seconds.
                self.assertGreater(min(len(operators), len(operations(trace))), 1)
                self.assertLess(abs(len(operators) - len(operations(trace))), 4)

    def tool(self, folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "NCCLSCOPE_CONTROL": str(folder / "control")}
        env["KINETO_IPC_SOCKET_DIR"] = str(folder)
        command = [str(tool_path(os.environ["NCCLSCOPE_PLUGIN"])), *args]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    def check_refusals(self, folder: Path) -> None:
        """A daemon runs, or the processes have not asked yet."""
        shot = ("snapshot", "--all", "--kineto", "-o", str(folder / "none"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
            daemon.bind(str(folder / "dynolog"))
            done = self.tool(folder, *shot, "--for", "1s")
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn("a dynolog daemon runs on this host", done.stderr)
        for window in (("--for", "1s", "--at", "+2s"), ("--steps", "2")):
            done = self.tool(folder, *shot, *window)
            self.assertEqual(done.returncode, 2, done.stderr)
        self.assertFalse((folder / "none").exists())

    def wait_for(self, folder: Path, pids: list[int]) -> None:
        """Waits until the ranks have a communicator."""
        for _ in range(600):
            done = self.tool(folder, "ls", "--format", "json")
            listed = json.loads(done.stdout)["processes"]
            if sorted(p["pid"] for p in listed if p["comms"]) == sorted(pids):
                return
            time.sleep(0.1)
        self.fail(f"the ranks are not listed: {done}")


class Early(unittest.TestCase):
    def test_a_profile_before_the_first_communicator_changes_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            job("early", Path(folder), NCCLSCOPE_START="on")


def with_kernels(trace: Trace, rank: int) -> Trace:
    """The trace with GPU kernels: a reduction, half of which a matrix product overlaps."""
    # Whole microseconds: HTA supports no fractions.
    start = int(annotation(trace, f"reduce {INSIDE}")["ts"]) + 1
    kernels = (("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 20, 0), ("gemm", 7, 50))
    for number, (name, stream, offset) in enumerate(kernels):
        # Large numbers: HTA derives the type of its indices from the correlations.
        ids = {"External id": 900, "correlation": 70_001 + number}
        here = {"ph": "X", "ts": start + offset, "dur": Decimal(100)}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        args = {**ids, "stream": stream, "device": 0}
        kernel = {"cat": "kernel", "name": name, "pid": 0, "tid": stream, "args": args}
        launch = {**here, **call, "dur": Decimal(1), "args": {**ids, "cbid": 211}}
        trace["traceEvents"] += [launch, {**here, **kernel}]
    trace["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    return trace


def overlap(folder: str) -> list[tuple[int, float]]:
    """HTA's overlap of communication and computation by rank, in per cent."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    from hta.trace_analysis import TraceAnalysis

    table = TraceAnalysis(trace_dir=folder).get_comm_comp_overlap(visualize=False)
    rows = zip(table["rank"].tolist(), table["comp_comm_overlap_pctg"].tolist())
    return sorted((int(rank), float(percent)) for rank, percent in rows)


if __name__ == "__main__":
    print(f"torch {torch.__version__}, Kineto's headers: {HAS_HEADERS}", flush=True)
    unittest.main()
