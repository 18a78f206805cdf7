"""Server-sent events by hand with httpx, every case handled: python raw_sse.py [URL]"""

import json
import os
import sys

import httpx

url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TANDEM_URL", "http://127.0.0.1:8080")
request = {"model": "tandem", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16, "stream": True}

with httpx.stream("POST", f"{url}/v1/chat/completions", json=request, timeout=60) as response:
    if response.status_code != 200:  # before the first event an error has its own status
        sys.exit(json.loads(response.read())["error"]["message"])
    print(f"[{response.headers['x-tandem-path']}: {response.headers['x-tandem-decision']}]")
    is_complete = False
    for line in response.iter_lines():
        if line == "data: [DONE]":
            is_complete = True
        elif line.startswith("data: "):  # other lines are blank, or comments that keep the connection alive
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:  # after the first event an error is an event
                sys.exit(event["error"]["message"])
            for choice in event["choices"]:
                print(choice["delta"].get("content", ""), end="", flush=True)
print()
sys.exit(0 if is_complete else "the stream ended before the answer was complete")
