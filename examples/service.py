"""A service of an ONNX model, written as for ONNX Runtime: one import is another.

    python examples/service.py model.onnx --port 8000
    curl -s http://127.0.0.1:8000 -d '{"x": [[1.0, 2.0]]}'

`ingot serve model.onnx` is the same with a standard protocol, metrics, joint calls and limits.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

import ingot
from ingot import InferenceSession  # in place of: from onnxruntime import InferenceSession

MOST_BYTES = 1 << 20  # of a request


def answer(session: InferenceSession, body: bytes) -> dict[str, object]:
    """The outputs by name, of inputs by name."""
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    given = json.loads(body)
    feeds = {x.name: np.asarray(given[x.name], types[x.type]) for x in session.get_inputs()}
    results = session.run(None, feeds)
    return {y.name: np.asarray(result).tolist() for y, result in zip(session.get_outputs(), results, strict=True)}


def serve(model: str, port: int) -> ThreadingHTTPServer:
    """A server on loopback; port 0 takes a free one."""
    session = InferenceSession(model)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                length = min(int(self.headers.get("Content-Length", 0)), MOST_BYTES)
                status, reply = 200, answer(session, self.rfile.read(length))
            except (ValueError, KeyError, TypeError, ingot.InputError) as error:
                status, reply = 400, {"error": str(error)}
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    serve(options.model, options.port).serve_forever()
