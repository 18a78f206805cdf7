"""One chat answer with the OpenAI client: python openai_chat.py [URL]"""

import os
import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TANDEM_URL", "http://127.0.0.1:8080")

with OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("TANDEM_API_KEY", "none")) as client:
    # with_raw_response gives the headers, too: they say which path answered and why.
    raw = client.chat.completions.with_raw_response.create(
        model="tandem",
        messages=[{"role": "user", "content": "Extract the city: I live in Paris."}],
        metadata={"task": "extraction"},
        max_tokens=32,
        temperature=0,
    )
    answer = raw.parse()

print(answer.choices[0].message.content)
print(f"[{raw.headers['x-tandem-path']}: {raw.headers['x-tandem-decision']}, {answer.usage.total_tokens} tokens]")
