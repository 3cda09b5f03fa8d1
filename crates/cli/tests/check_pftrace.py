# SPDX-License-Identifier: Apache-2.0
"""Reads a trace with Perfetto's official schema and checks what a viewer relies on.

usage: check_pftrace.py FILE...

FILE is a pftrace, several that belong together (read as if put behind one another), or a tar of
them with a manifest (each is read by itself).

Checks that slices nest on each track, that time never goes back in a packet sequence, that interned
names are defined before their use and within the same sequence, that each track hangs below one
process, that there is one process for each rank with tracks for its kernel channels and proxy
peers, that states lie inside their step, that counters end at zero, that each arrow has its two
ends, and those between steps join the same step of both sides, that clocks are declared, and that a
slice takes 80 bytes at most. Prints a summary as JSON.
"""

import json
import re
import sys
import tarfile
from collections import Counter, defaultdict

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

CLEARED = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
NEEDS = pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
BEGIN, END = pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END
COUNTER = pb.TrackEvent.TYPE_COUNTER
STATES = {"SendGPUWait", "SendPeerWait", "SendWait", "RecvWait", "RecvFlushWait", "RecvGPUWait"}
BYTES_PER_SLICE_MAX = 80


class Sequence:
    """What one packet sequence has defined so far."""

    def __init__(self):
        self.is_cleared = False
        self.names, self.categories, self.arg_names, self.values = {}, {}, {}, {}
        self.default_track = self.clock = self.now = None

    def define(self, data):
        tables = [
            (data.event_names, self.names, "name"),
            (data.event_categories, self.categories, "name"),
            (data.debug_annotation_names, self.arg_names, "name"),
            (data.debug_annotation_string_values, self.values, "str"),
        ]
        for entries, table, field in tables:
            for entry in entries:
                assert entry.iid not in table, f"{entry} is defined twice"
                text = getattr(entry, field)
                assert text not in table.values(), f"{text} has two numbers"
                table[entry.iid] = text

    def synchronise(self, snapshot):
        clocks = {c.clock_id: c for c in snapshot.clocks}
        times = {c.timestamp for c in snapshot.clocks}
        assert len(times) == 1, "clocks are not declared equal"
        assert pb.BUILTIN_CLOCK_BOOTTIME in clocks and pb.BUILTIN_CLOCK_REALTIME in clocks
        [own] = [c for c in snapshot.clocks if c.is_incremental]
        assert 64 <= own.clock_id < 128 and self.clock is None, "a sequence has its own one clock"
        self.clock, self.now = own.clock_id, own.timestamp

    def advance(self, packet):
        clock = packet.timestamp_clock_id or self.clock
        assert clock == self.clock is not None, f"clock {clock}"
        assert packet.HasField("timestamp") and packet.timestamp < 1 << 62, "time goes back"
        self.now += packet.timestamp
        return self.now


def value_of(sequence, annotation):
    kind = annotation.WhichOneof("value")
    value = getattr(annotation, kind)
    return sequence.values[value].decode() if kind == "string_value_iid" else value


class Trace:
    def __init__(self, data):
        trace = pb.Trace()
        trace.ParseFromString(data)
        self.bytes = len(data)
        self.sequences = defaultdict(Sequence)
        self.tracks, self.open, self.last = {}, defaultdict(list), {}
        self.slices, self.counters = [], defaultdict(list)
        self.starts, self.ends = defaultdict(list), defaultdict(list)
        self.correlations = defaultdict(list)
        for packet in trace.packet:
            self.packet(packet)
        assert not any(self.open.values()), "slices without an end"

    def packet(self, packet):
        # Perfetto's trace processor (v52) reads larger ids as negative numbers and refuses their
        # clocks.
        assert 0 < packet.trusted_packet_sequence_id < 1 << 31, "a sequence's number"
        sequence = self.sequences[packet.trusted_packet_sequence_id]
        if packet.sequence_flags & CLEARED:
            assert not sequence.is_cleared, "two tracks share a sequence"
            assert packet.first_packet_on_sequence
            sequence.is_cleared = True
        if packet.HasField("clock_snapshot"):
            sequence.synchronise(packet.clock_snapshot)
        if packet.HasField("interned_data"):
            assert packet.sequence_flags & NEEDS
            sequence.define(packet.interned_data)
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults
            assert defaults.timestamp_clock_id == sequence.clock
            sequence.default_track = defaults.track_event_defaults.track_uuid
        if packet.HasField("track_descriptor"):
            self.descriptor(packet.track_descriptor)
        if packet.HasField("track_event"):
            assert packet.sequence_flags & NEEDS and sequence.is_cleared
            self.event(sequence, sequence.advance(packet), packet.track_event)

    def descriptor(self, track):
        assert track.uuid not in self.tracks, f"track {track.uuid} is described twice"
        assert track.HasField("process") or track.parent_uuid in self.tracks, "an orphan track"
        self.tracks[track.uuid] = track

    def event(self, sequence, timestamp, event):
        uuid = event.track_uuid or sequence.default_track
        assert uuid in self.tracks, "an event before its track"
        assert timestamp >= self.last.get(uuid, 0), "time goes back on a track"
        self.last[uuid] = timestamp
        is_counter = self.tracks[uuid].HasField("counter")
        assert is_counter == (event.type == COUNTER), "a slice and a counter share a track"
        if is_counter:
            value = getattr(event, event.WhichOneof("counter_value_field"))
            self.counters[uuid].append((timestamp, value))
            return
        slice_ = self.slice(sequence, timestamp, event, uuid)
        for flow in event.flow_ids:
            self.starts[flow].append(slice_)
        for flow in event.terminating_flow_ids:
            self.ends[flow].append(slice_)

    def slice(self, sequence, timestamp, event, uuid):
        stack = self.open[uuid]
        if event.type != BEGIN:
            assert event.type == END, f"an event of type {event.type}"
            assert stack, "an end without a beginning"
            slice_ = stack.pop()
            slice_["end"] = timestamp
            return slice_
        args = {sequence.arg_names[a.name_iid]: value_of(sequence, a)
                for a in event.debug_annotations}
        categories = [sequence.categories[iid] for iid in event.category_iids]
        slice_ = {"name": sequence.names[event.name_iid], "category": (categories or ["state"])[0],
                  "track": uuid, "args": args, "start": timestamp, "depth": len(stack), "around": stack[-1] if stack else None,
                  "parent": stack[-1]["name"] if stack else None}
        stack.append(slice_)
        self.slices.append(slice_)
        if event.HasField("correlation_id"):
            self.correlations[event.correlation_id].append(slice_)
        return slice_

    def process_of(self, track):
        while not track.HasField("process"):
            track = self.tracks[track.parent_uuid]
        return track.process.process_name

    def process_of_slice(self, slice_):
        return self.process_of(self.tracks[slice_["track"]])


def groups(trace):
    """The tracks of communicators."""
    return [t for t in trace.tracks.values() if not t.HasField("process") and t.child_ordering]


def check_names(trace):
    processes = [t for t in trace.tracks.values() if t.HasField("process")]
    names = [t.process.process_name for t in processes]
    assert len(set(names)) == len(names), f"processes share a name: {names}"
    assert len({t.process.pid for t in processes}) == len(names), "processes share a number"
    assert all(t.process.process_labels for t in processes), "a rank without its communicators"
    rows = defaultdict(set)
    for track in trace.tracks.values():
        assert track.HasField("process") or track.name, "a track without a name"
        if not track.HasField("process") and not track.child_ordering:
            is_of_process = trace.tracks[track.parent_uuid] not in groups(trace)
            assert is_of_process == (track.name == "Steps and marks"), track.name
            rows[trace.process_of(track)].add(track.name)
    return names, rows


def check_slices(trace):
    for slice_ in trace.slices:
        name = trace.tracks[slice_["track"]].name
        if slice_["category"] == "kernel":
            assert name.startswith("Kernel channel "), (name, slice_)
        if slice_["category"] in ("proxy", "step"):
            assert name.startswith("Proxy "), (name, slice_)
        if slice_["name"] == "ProxyStep" and slice_["depth"]:
            assert slice_["parent"].startswith("ProxyOp"), slice_
        assert (slice_["category"] == "state") == (slice_["name"] in STATES), slice_
        if slice_["category"] == "state":
            assert slice_["parent"] == "ProxyStep" and slice_["end"] > slice_["start"], slice_
            assert slice_["name"].startswith("Send" if " send to " in name else "Recv"), slice_
    for slices in trace.correlations.values():
        assert len({s["name"].split()[-1] for s in slices}) == 1, "a correlation of two functions"
    for values in trace.counters.values():
        assert values[-1][1] == 0 and all(value >= 0 for _, value in values), values[-1]


def check_step_arrow(trace, source, target):
    """From a send's step to the same step of the receive, on the same channel of the peer."""
    assert source["args"]["step"] == target["args"]["step"], (source, target)
    names = [trace.tracks[s["track"]].name for s in (source, target)]
    to, sent_on = re.fullmatch(r"Proxy send to rank (\d+), channel (\d+)", names[0]).groups()
    of, got_on = re.fullmatch(r"Proxy receive from rank (\d+), channel (\d+)", names[1]).groups()
    assert sent_on == got_on, names
    processes = [trace.process_of_slice(s) for s in (source, target)]
    assert processes[0] != processes[1], processes
    # A process is named by its rank in its largest communicator, which is mostly its only one.
    if len(groups(trace)) == len(set(map(trace.process_of, groups(trace)))):
        assert processes[0].startswith(f"rank {of} "), (processes, names)
        assert processes[1].startswith(f"rank {to} "), (processes, names)


def check_arrows(trace):
    """How many arrows there are, by the categories of the two slices."""
    kinds = Counter()
    assert trace.ends.keys() <= trace.starts.keys(), "an arrow without a start"
    for flow, ends in trace.starts.items():
        if flow in trace.ends:
            [source], [target] = ends, trace.ends[flow]
            assert source["start"] <= target["start"], "an arrow points back in time"
            assert trace.process_of_slice(source) == trace.process_of_slice(target)
            kinds[f"{source['category']} to {target['category']}"] += 1
            continue
        is_receive = [" receive from " in trace.tracks[s["track"]].name for s in ends]
        assert sorted(is_receive) == [False, True], "an arrow with one end"
        source, target = ends if is_receive[1] else reversed(ends)
        # The clocks of two hosts differ, and a simulation has none: Perfetto shows such arrows
        # reversed.
        kinds["back in time"] += source["start"] > target["start"]
        steps = [s["around"] if s["category"] == "state" else s for s in (source, target)]
        check_step_arrow(trace, *steps)
        kinds["step to step"] += 1
    return kinds


def summary(data):
    trace = Trace(data)
    names, rows = check_names(trace)
    check_slices(trace)
    arrows = check_arrows(trace)
    # In a trace of few slices, the parts that occur once count more.
    bytes_per_slice = trace.bytes / max(1, len(trace.slices))
    if len(trace.slices) >= 1000:
        assert bytes_per_slice <= BYTES_PER_SLICE_MAX, f"{bytes_per_slice} bytes a slice"
    operations = [s for s in trace.slices if s["category"] == "operation"]
    counters = defaultdict(list)
    for uuid, values in trace.counters.items():
        counters[trace.tracks[uuid].name].append(max(value for _, value in values))
    return {
        "processes": sorted(names),
        "groups": sorted(group.name for group in groups(trace)),
        "tracks": {name: sorted(tracks) for name, tracks in rows.items()},
        "counters": counters,
        "slices": Counter(s["name"] for s in trace.slices),
        "open": sum(1 for s in trace.slices if s["args"].get("open") == 1),
        "arrows": +arrows,
        "ranks_by_collective": sorted(
            len({trace.process_of_slice(s) for s in slices})
            for slices in trace.correlations.values()),
        "first_operation": min(operations, key=lambda s: s["start"], default={}).get("args"),
        "bytes_per_slice": round(bytes_per_slice, 1),
    }


def archive(path):
    """A summary for each member of a tar, with what the manifest says of it."""
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}
    manifest = files.pop("perfetto_manifest.json")
    assert manifest.startswith(b'{"perfetto_manifest"'), "Perfetto looks at the first bytes"
    manifest = json.loads(manifest)["perfetto_manifest"]
    assert manifest["version"] == 1
    assert [file["path"] for file in manifest["files"]] == list(files)
    assert manifest["trace_time"]["file"] in files
    return {file["path"]: {"machine": file["machine"]["name"], **summary(files[file["path"]])}
            for file in manifest["files"]}


def main():
    if sys.argv[1].endswith(".tar"):
        result = archive(sys.argv[1])
    else:
        parts = []
        for path in sys.argv[1:]:
            with open(path, "rb") as file:
                parts.append(file.read())
        result = summary(b"".join(parts))
    print(json.dumps(result, sort_keys=True))


if __name__ == "__main__":
    main()
