# SPDX-License-Identifier: Apache-2.0
"""Writes a recording of a later version by docs/trace-format.md alone: its tables are the page's.

Usage: handmade_recording.py PAGE FILE
"""

import re
import struct
import sys
import zlib

PROCESS = 5
# What a later version adds: an event kind and a record, as rows of the page's table.
ADDED = """| 61 | Teleport | 9 | 3, 5 | distance u64@4, where string@5.0, colour u5@5.40 |
| 90 | weather | 4 |  | hot u32@0.32, wet u64@2 |"""


def records(page):
    """By code: name, words, halves as bits, fields by name (word, shift, bits, words, meaning)."""
    found = {}
    row = re.compile(r"^\| (\d+) \| (.+?) \| (\d+) \| ([\d, ]*?) ?\| (.*?) ?\|$", re.M)
    for code, name, words, halves, fields in row.findall(page + "\n" + ADDED):
        halves = sum(1 << int(word) for word in halves.split(",") if word.strip())
        known = {}
        for label, kind, count, word, shift in re.findall(
            r"(\w+) (\w+?)(?:\[(\d)\])?@(\d+)(?:\.(\d+))?", fields
        ):
            bits = {"flag": 1, "string": 16, "handle": 64}.get(kind) or int(kind[1:])
            meaning = {"flag": 2, "string": 3, "handle": 4}.get(kind, int(kind[0] == "i"))
            known[label] = (int(word), int(shift or 0), bits, int(count or 1), meaning)
        found[int(code)] = (name, int(words), halves, known)
    return found


def named(text):
    return bytes([len(text)]) + text.encode()


def definition(tag, body):
    whole = struct.pack("<BI", tag, len(body)) + body
    return whole + struct.pack("<I", zlib.crc32(whole))


def definitions(table):
    out = b""
    for code, (name, words, halves, fields) in table.items():
        body = struct.pack("<BBHI", code, words, len(fields), halves) + named(name)
        for label, place in fields.items():
            body += bytes(place) + named(label)
        out += definition(9, body)
    for place, by_kind, at, name in [(0, 0, 144, "comets"), (0, 1, 512, "overwritten")]:
        out += definition(11, struct.pack("<BBH", place, by_kind, at) + named(name))
    for number, text in enumerate(["AllReduce", "ncclFloat32", "RING", "SIMPLE", "left"], 1):
        out += definition(1, struct.pack("<H", number) + text.encode())
    comm = struct.pack("<HBBiQQIIII", 0, 1, 0, 0, 0xFEED, 1000, 2, 2, 6, 23007)
    out += definition(2, comm + b"world") + definition(77, b"of tomorrow")
    for key, value in {"job": "tomorrow", "rank": "0", "flavour": "vanilla"}.items():
        out += definition(10, named(key) + value.encode())
    return out


def leb(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def zigzag(number, bits=32):
    number &= (1 << bits) - 1
    number -= (number >> (bits - 1)) << bits
    return (number << 1) ^ (number >> 63)


class Block:
    def __init__(self, table, first):
        self.table, self.first, self.ticks = table, first, first
        self.payload, self.count, self.words = b"", 0, 0
        self.previous, self.steps, self.next, self.latest = {}, {}, {}, 0
        self.step_ticks = first

    def add(self, code, ticks, **fields):
        _, words, halves, places = self.table[code]
        record = [0] * words
        record[0], record[1] = code | fields.pop("comm", 0) << 16, ticks
        for word, label in [(2, "event"), (3, "parent")]:
            if label in fields:
                record[word] = fields.pop(label)
        for label, value in fields.items():
            word, shift, bits = places[label][:3]
            record[word] |= (value & ((1 << bits) - 1)) << shift
        self.count, self.words = self.count + 1, self.words + words
        if code == 3:
            return self.step(record)
        last = self.previous.get(code, [0] * words)
        numbers = [(record[0] ^ last[0]) >> 8 & 0xFFFFFF]
        numbers.append(zigzag((record[0] >> 32) - (last[0] >> 32)))
        numbers.append(zigzag(ticks - self.ticks, 64))
        for word in range(2, words):
            if halves >> word & 1:
                numbers.append(zigzag(record[word] - last[word]))
                numbers.append(zigzag((record[word] >> 32) - (last[word] >> 32)))
            else:
                numbers.append(zigzag(record[word] - last[word], 64))
        mask = sum(1 << at for at, number in enumerate(numbers) if number)
        self.payload += bytes([code]) + leb(mask) + b"".join(leb(n) for n in numbers if n)
        self.previous[code], self.ticks = record, ticks

    def step(self, record):
        low, high = (lambda at: record[at] & 0xFFFFFFFF), (lambda at: record[at] >> 32)
        op, size, number = low(2), high(2), high(0)
        flags, repeats = record[0] >> 8 & 255, record[0] >> 16 & 0xFFFF
        context = op % 128
        last = self.steps.get(context, [context, 0, 0, 0, 0, [0] * 5])
        bits, more, expected = 0, b"", last[1] + 1
        if context != self.next.get(self.latest, 0):
            bits, more = 1, leb(context)
        if op != last[0]:
            bits, more, expected = bits | 2, more + leb(zigzag(op // 128 - last[0] // 128)), 0
        if number != expected:
            bits, more = bits | 4, more + leb(zigzag(number - expected))
        if flags != last[2]:
            bits, more = bits | 8, more + leb(flags)
        if repeats != last[3]:
            bits, more = bits | 16, more + leb(repeats)
        if size != last[4]:
            bits, more = bits | 32, more + leb(zigzag(size - last[4]))
        if bits:
            self.payload += bytes([0x7F, bits]) + more
        times = [low(3), high(3), low(4), high(4)]
        gaps = [record[1] - self.step_ticks, times[0]]
        gaps += [after - before for before, after in zip(times, times[1:])]
        coded = [zigzag(gap - before) for gap, before in zip(gaps, last[5])]
        widths = [(number.bit_length() + 3) // 4 for number in coded]
        head, packed, at = 0x8000, 0, 0
        for place, (number, width) in enumerate(zip(coded, widths)):
            head |= width << (12 - 3 * place)
            packed, at = packed | number << at, at + 4 * width
        self.payload += struct.pack(">H", head) + packed.to_bytes((at + 7) // 8, "little")
        self.steps[context] = [op, number, flags, repeats, size, gaps]
        self.next[self.latest], self.latest, self.step_ticks = context, context, record[1]

    def whole(self, number, lane):
        payload = self.payload + bytes(-len(self.payload) % 8)
        length, first = 64 + len(payload), self.first
        head = (length, 1, number, lane, 0, self.count, 0, self.words, first, 0)
        body = struct.pack("<IIQHHIQQQQ", *head) + payload
        return b"NSB1" + struct.pack("<I", zlib.crc32(body)) + body


def handle(kind, lane, sequence):
    return PROCESS << 54 | kind << 48 | lane << 40 | sequence


def blocks(table):
    t0, second = 10**9, 10**9
    own = Block(table, t0)
    for n in range(2):
        own.add(5, t0 + n * second, error_ns=50, monotonic_ns=t0 + n * second,
                realtime_ns=(1_790_000_000 + n) * second)
    group, coll = handle(0, 0, 1), handle(1, 0, 2)
    api = Block(table, t0)
    api.add(16, t0 + 1000, event=group)
    api.add(17, t0 + 2000, event=coll, channels=1, group=group, count=1 << 20, func=1, datatype=2,
            algo=3, proto=4)
    api.add(61, t0 + 2500, event=handle(45, 0, 9), parent=coll, distance=123456789, where=5)
    api.add(90, t0 + 2600, hot=3, wet=9)
    api.add(1, t0 + 3000, handle=coll)
    api.add(1, t0 + 3500, handle=group)
    proxy, kernel = handle(3, 1, 1 << 18), handle(6, 1, 3)
    net = Block(table, t0)
    net.add(19, t0 + 4000, event=proxy, parent=coll, peer=1, pid=4711, steps=4, is_send=1)
    net.add(22, t0 + 5000, event=kernel, parent=coll, ptimer=777_000_000)
    for n in range(4):
        net.add(3, t0 + 10_000 + n * 100_000, flags=63, repeats=2 * n % 3, step=n,
                op_ref=proxy >> 3 & 0xFFFFFFFF, size=1 << 19, first=10, second=200 + n,
                third=300 + 5 * n, end=5000 + n)
    net.add(2, t0 + 590_000, handle=kernel, state=22, arg=777_585_000)
    net.add(1, t0 + 600_000, handle=proxy)
    net.add(1, t0 + 600_500, handle=kernel)
    return [(0xFFFF, own), (0, api), (1, net)]


def main(page, path):
    table = records(open(page).read())
    defined, lanes, ring = definitions(table), bytearray(256 * 1280), b""
    for number, (lane, block) in enumerate(blocks(table)):
        ring += block.whole(number, lane)
        if lane < 256:
            struct.pack_into("<III", lanes, lane * 1280, 2, 0, 100 + lane)
            struct.pack_into("<Q", lanes, lane * 1280 + 64, block.words)
            struct.pack_into("<Q", lanes, lane * 1280 + 192, block.words)
    head = bytearray(4096)
    head[:8], head[256:264] = b"NCCLSCOP", b"handmade"
    struct.pack_into("<HH", head, 8, 2, 9)
    for at, value in {16: 1, 24: 4711, 28: PROCESS, 36: 4, 64: 0xFFFF}.items():
        struct.pack_into("<I", head, at, value)
    for at, value in {40: 10**9, 48: 3, 56: len(defined), 144: 42, 512 + 8 * 45: 6}.items():
        struct.pack_into("<Q", head, at, value)
    head[248:256] = struct.pack("<I", zlib.crc32(head[:248] + head[256:])) + b"CRC\x01"
    front = bytes(head) + bytes(lanes)
    front += bytes(384 * 1024 - len(front)) + defined
    with open(path, "wb") as out:
        out.write(front + bytes(1344 * 1024 - len(front)) + ring)


main(sys.argv[1], sys.argv[2])
