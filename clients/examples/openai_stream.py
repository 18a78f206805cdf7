"""A streamed chat answer with the OpenAI client: python openai_stream.py [URL]"""

import os
import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TANDEM_URL", "http://127.0.0.1:8080")

with OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("TANDEM_API_KEY", "none")) as client:
    events = client.chat.completions.create(
        model="tandem",
        messages=[{"role": "user", "content": "Why is the sky blue? Think step by step."}],
        max_tokens=64,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for event in events:
        if event.choices:
            print(event.choices[0].delta.content or "", end="", flush=True)
        else:  # the last event has no choices but the usage
            print(f"\n[{event.model}, {event.usage.completion_tokens} tokens]")
