"""The picture of bench --trace: all ranks' operators on the rows of their streams. Usage: trace.py TRACE RANKS STREAMS

On a stream operators run one after the other, and lie inside their segments and parts, which cross nowhere; operators of two
streams overlap somewhere. A stream may have none: what ranks send one another is not drawn.
"""
import json, sys

path, ranks, streams = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
events = json.load(open(path))["traceEvents"]
NEAR = 0.1  # us: CUDA has times between events in single precision
assert {e["pid"] for e in events} == set(range(ranks)), {e["pid"] for e in events}
for rank in range(ranks):
    mine = [e for e in events if e["pid"] == rank]
    names = {e["tid"]: e["args"]["name"] for e in mine if e["name"] == "thread_name"}
    assert names == {**{s: f"stream {s}" for s in range(streams)}, streams: "other ranks"}, names
    kind = {k: [e for e in mine if e["ph"] == "X" and e["cat"] == k] for k in ("part", "segment", "operator", "host")}
    assert {e["args"]["segment"] for e in kind["operator"]} >= {"moe_forward", "moe_backward"}, rank
    assert all(e["args"]["FLOPs"] >= 0 and e["args"]["bytes"] > 0 and e["dur"] >= 0 for e in kind["operator"]), rank
    assert all(e["tid"] == streams for e in kind["host"]) and (ranks == 1 or streams > 1 or kind["host"]), rank
    for s in range(streams):
        on = [e for k in ("part", "segment", "operator") for e in kind[k] if e["tid"] == s]
        assert not on or {e["cat"] for e in on} >= {"part", "operator"}, (rank, s)
        open_until = []
        for e in sorted(on, key=lambda e: (e["ts"], -e["dur"], e["cat"] == "operator")):
            end = e["ts"] + e["dur"]
            while open_until and open_until[-1] <= e["ts"] + NEAR:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + NEAR, ("overlap", rank, e)
            open_until.append(end)
    last, both = {}, 0
    for e in sorted(kind["operator"], key=lambda e: e["ts"]):
        both += any(end > e["ts"] + NEAR for s, end in last.items() if s != e["tid"])
        last[e["tid"]] = e["ts"] + e["dur"]
    assert (both > 0) == (streams > 1), (rank, both)
    print(f"rank {rank}: {len(kind['operator'])} operators on {streams} streams, {both} begin while another stream's runs")
