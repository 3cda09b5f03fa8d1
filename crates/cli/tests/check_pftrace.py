# SPDX-License-Identifier: Apache-2.0
"""Reads a pftrace with Perfetto's official schema and checks what a viewer relies on.

usage: check_pftrace.py FILE

Checks that slices nest on each track, that interned names are defined before their use and within
the same packet sequence, that each track hangs below one process, that there is one process for
each rank with tracks for its kernel channels and proxy peers, that each arrow has its two ends,
and that clocks are declared. Prints a summary as JSON.
"""

import json
import sys
from collections import Counter, defaultdict

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

CLEARED = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
NEEDS = pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
BEGIN, END = pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END


class Sequence:
    """What one packet sequence has defined so far."""

    def __init__(self):
        self.is_cleared = False
        self.names, self.categories, self.arg_names, self.values = {}, {}, {}, {}
        self.default_track = None

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
                table[entry.iid] = getattr(entry, field)


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
        self.slices = []
        self.starts, self.ends = Counter(), Counter()
        self.correlations = defaultdict(list)
        self.has_clock = False
        for packet in trace.packet:
            self.packet(packet)
        assert not any(self.open.values()), "slices without an end"

    def packet(self, packet):
        assert packet.trusted_packet_sequence_id != 0, "a packet without a sequence"
        sequence = self.sequences[packet.trusted_packet_sequence_id]
        if packet.sequence_flags & CLEARED:
            assert not sequence.is_cleared, "two ranks share a sequence"
            sequence.is_cleared = True
        if packet.HasField("clock_snapshot"):
            clocks = {c.clock_id: c.timestamp for c in packet.clock_snapshot.clocks}
            assert clocks[pb.BUILTIN_CLOCK_BOOTTIME] == clocks[pb.BUILTIN_CLOCK_REALTIME]
            self.has_clock = True
        if packet.HasField("interned_data"):
            assert packet.sequence_flags & NEEDS
            sequence.define(packet.interned_data)
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults
            assert defaults.timestamp_clock_id == pb.BUILTIN_CLOCK_BOOTTIME
            sequence.default_track = defaults.track_event_defaults.track_uuid
        if packet.HasField("track_descriptor"):
            self.descriptor(packet.track_descriptor)
        if packet.HasField("track_event"):
            assert packet.sequence_flags & NEEDS and sequence.is_cleared
            self.event(sequence, packet.timestamp, packet.track_event)

    def descriptor(self, track):
        assert track.uuid not in self.tracks, f"track {track.uuid} is described twice"
        assert track.HasField("process") or track.parent_uuid in self.tracks, "an orphan track"
        self.tracks[track.uuid] = track

    def event(self, sequence, timestamp, event):
        uuid = event.track_uuid or sequence.default_track
        assert uuid in self.tracks, "an event before its track"
        assert timestamp >= self.last.get(uuid, 0), "time goes back on a track"
        self.last[uuid] = timestamp
        stack = self.open[uuid]
        if event.type == BEGIN:
            args = {sequence.arg_names[a.name_iid]: value_of(sequence, a)
                    for a in event.debug_annotations}
            name = sequence.names[event.name_iid]
            categories = [sequence.categories[iid] for iid in event.category_iids]
            slice_ = {"name": name, "category": categories[0], "track": uuid, "args": args,
                      "start": timestamp, "depth": len(stack),
                      "parent": stack[-1]["name"] if stack else None}
            stack.append(slice_)
            self.slices.append(slice_)
            if event.HasField("correlation_id"):
                self.correlations[event.correlation_id].append(slice_)
        else:
            assert event.type == END, f"an event of type {event.type}"
            assert stack, "an end without a beginning"
            slice_ = stack.pop()
            slice_["end"] = timestamp
        for flow in event.flow_ids:
            self.starts[flow] += 1
            slice_.setdefault("flows", []).append(flow)
        for flow in event.terminating_flow_ids:
            self.ends[flow] += 1

    def rank_of(self, slice_):
        track = self.tracks[slice_["track"]]
        return self.tracks[track.parent_uuid].process.process_name


def check(trace):
    assert trace.has_clock, "no clock is declared"
    processes = [t for t in trace.tracks.values() if t.HasField("process")]
    names = [t.process.process_name for t in processes]
    assert len(set(names)) == len(names), f"processes share a name: {names}"
    assert len({t.process.pid for t in processes}) == len(names), "processes share a number"
    rows = defaultdict(set)
    for track in trace.tracks.values():
        if not track.HasField("process"):
            assert track.name, "a track without a name"
            rows[trace.tracks[track.parent_uuid].process.process_name].add(track.name)
    for slice_ in trace.slices:
        name = trace.tracks[slice_["track"]].name
        if slice_["category"] == "kernel":
            assert name.startswith("Kernel channel "), (name, slice_)
        if slice_["category"] in ("proxy", "step"):
            assert name.startswith("Proxy "), (name, slice_)
        if slice_["name"] == "ProxyStep" and slice_["depth"]:
            assert slice_["parent"].startswith("ProxyOp"), slice_
    assert trace.starts == trace.ends, "an arrow with one end"
    assert all(count == 1 for count in trace.starts.values()), "an arrow is used twice"
    for slices in trace.correlations.values():
        assert len({s["name"].split()[-1] for s in slices}) == 1, "a correlation of two functions"
    return names, rows


def main():
    with open(sys.argv[1], "rb") as file:
        trace = Trace(file.read())
    names, rows = check(trace)
    operations = [s for s in trace.slices if s["category"] == "operation"]
    print(json.dumps({
        "processes": sorted(names),
        "tracks": {name: sorted(tracks) for name, tracks in rows.items()},
        "slices": Counter(s["name"] for s in trace.slices),
        "open": sum(1 for s in trace.slices if s["args"].get("open") == 1),
        "arrows": len(trace.starts),
        "ranks_by_collective": sorted(
            len({trace.rank_of(s) for s in slices}) for slices in trace.correlations.values()),
        "first_operation": min(operations, key=lambda s: s["start"], default={}).get("args"),
        "bytes_per_slice": round(trace.bytes / max(1, len(trace.slices))),
    }, sort_keys=True))


if __name__ == "__main__":
    main()
