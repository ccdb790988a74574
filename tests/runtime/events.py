"""Whether TensorBoard's event files in a folder hold the numbers of a file of metrics.

usage: events.py FOLDER METRICS...

Reads them by the description of their formats (TFRecord, protocol buffers), with a CRC-32C of its
own; and by TensorBoard's own reader where that is installed, else it says that it is not.
"""
import glob
import json
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    data = open(path, "rb").read()
    at = 0
    while at < len(data):
        size, crc = struct.unpack_from("<QI", data, at)
        body = data[at + 12 : at + 12 + size]
        assert crc == masked(data[at : at + 8]) and len(body) == size
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == masked(body)
        yield body
        at += 16 + size


def varint(data, at):
    x = shift = 0
    while True:
        x |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return x, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            value, at = varint(data, at)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            size, at = varint(data, at)
        assert at + size <= len(data)
        yield key >> 3, data[at : at + size]
        at += size


def events(folder):
    """{(tag, step): number} as a reader sees it: a new start drops what was of later steps."""
    seen = {}
    for path in sorted(glob.glob(folder + "/events.out.tfevents.*"), key=lambda p: p.split(".")[3:]):
        for i, body in enumerate(records(path)):
            event = dict(fields(body))
            if i == 0:
                assert event[3] == b"brain.Event:2"
            if 7 in event and dict(fields(event[7]))[1] == 1:
                seen = {k: v for k, v in seen.items() if k[1] < event[2]}
            for number, value in fields(event.get(5, b"")):
                assert number == 1
                value = dict(fields(value))
                seen[value[1].decode(), event[2]] = struct.unpack("<f", value[2])[0]
    return seen


def metrics(paths):
    seen = {}
    for path in paths:
        for line in map(json.loads, open(path)):
            step = line.pop("step")
            line.pop("resumed", 0)
            for layer in line.pop("moe", []):
                of = "layer %02d/" % layer.pop("layer")
                layer.pop("load", 0)
                seen.update({(of + key, step): x for key, x in layer.items()})
            for name, of in line.pop("eval", {}).items():
                seen.update({("eval/%s/%s" % (name, key), step): x for key, x in of.items()})
            seen.update({(key, step): x for key, x in line.items()})
    return seen


def near(a, b):
    if b is None:
        return a != a or a in (float("inf"), -float("inf"))
    return abs(a - b) <= 1e-6 * abs(b)


have, want = events(sys.argv[1]), metrics(sys.argv[2:])
assert have.keys() == want.keys(), (have.keys() ^ want.keys(),)
assert want and all(near(have[k], want[k]) for k in want)
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    print("tensorboard is not installed: read by this script alone")
    sys.exit()
reader = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
reader.Reload()
theirs = {(tag, e.step): e.value for tag in reader.Tags()["scalars"] for e in reader.Scalars(tag)}
assert theirs.keys() == want.keys(), (theirs.keys() ^ want.keys(),)
assert all(near(theirs[k], want[k]) for k in want)
