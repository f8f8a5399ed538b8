"""A process that measures nothing: it answers, ends or hangs, as it is asked."""

from __future__ import annotations

import json
import os
import sys
import time

for line in sys.stdin:
    asked = json.loads(line)
    if asked["what"] == "hang":
        time.sleep(60)
    if asked["what"] == "end":
        os._exit(3)
    print(json.dumps({"process": os.getpid()} if asked["what"] == "answer" else {"error": "no such thing"}), flush=True)
