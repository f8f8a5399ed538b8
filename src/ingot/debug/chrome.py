"""An explanation as a Chrome trace: open it in ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

import json

from ingot.debug.explain import Explanation


def chrome_trace(e: Explanation) -> str:
    """JSON in the Trace Event Format: one call of the model as one track, one slice per group, in microseconds."""
    name = {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": f"ingot: {e.model}"}}
    track = {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": e.rates.machine}}
    slices = [
        {
            "name": r.label,
            "cat": r.kind,
            "ph": "X",
            "pid": 1,
            "tid": 1,
            "ts": r.begin * 1e6,
            "dur": r.seconds * 1e6,
            "args": {
                "where": r.where,
                "kernels": ", ".join(r.kernels),
                "chunks": r.chunks,
                "flops": r.flops,
                "bytes": r.bytes,
                "share of FMA peak": r.flops_share,
                "share of bandwidth": r.bytes_share,
                "result": r.result,
                "fused": ", ".join(r.fused),
                "not in its reader's kernel because": r.unfused_reason,
            },
        }
        for r in e.rows
    ]
    sizes = {"sizes": e.sizes, "cpu": e.rates.cpu, "gflops": e.rates.gflops, "gbytes": e.rates.gbytes}
    return json.dumps({"traceEvents": [name, track, *slices], "displayTimeUnit": "ns", "otherData": sizes})
