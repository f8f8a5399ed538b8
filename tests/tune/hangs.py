"""A process that measures nothing: it answers, ends or hangs, as it is asked."""

from __future__ import annotations

import json
import os
import sys
import time

for line in sys.stdin:
    request = json.loads(line)
    if request["what"] == "hang":
        time.sleep(60)
    if request["what"] == "end":
        os._exit(3)
    print(
        json.dumps({"process": os.getpid()} if request["what"] == "answer" else {"error": "no such thing"}), flush=True
    )
