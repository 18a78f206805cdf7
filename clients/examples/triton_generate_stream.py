"""Triton's generate_stream over HTTP, past the gateway: python triton_generate_stream.py [URL]"""

import json
import os
import sys

import httpx

url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TRITON_HTTP", "http://127.0.0.1:8000")
request = {"text_input": "The capital of France is", "max_tokens": 16, "temperature": 0.0, "stream": True}

with httpx.stream("POST", f"{url}/v2/models/tandem/generate_stream", json=request, timeout=60) as response:
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        event = json.loads(line.removeprefix("data:"))
        # A failure after the first event keeps status 200: look for it in every event.
        if "error" in event:
            sys.exit(event["error"])
        print(event["text_output"], end="", flush=True)
    response.raise_for_status()
print(f"\n[{event['served_path']}/{event['engine']}, {event['finish_reason']}]")
