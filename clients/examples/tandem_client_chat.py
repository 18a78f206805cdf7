"""The Python client over HTTP or gRPC: python tandem_client_chat.py [http://HOST:PORT | HOST:PORT]"""

import os
import sys

from tandem_client import Sampling, TandemClient
from tandem_client.results import Delta

address = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TANDEM_URL", "http://127.0.0.1:8080")
client = TandemClient.http(address) if address.startswith("http") else TandemClient.grpc(address)

with client:
    answer = client.chat("Translate to French: good morning", task="translation", sampling=Sampling(max_tokens=32, temperature=0.0))
    print(answer.text)
    print(f"[{answer.path}/{answer.engine}: {answer.decision}; first text after {answer.latency.ttft_s:.3f} s]")

    for event in client.stream("Count to five.", model="tandem-fast", sampling=Sampling(max_tokens=24, temperature=0.0)):
        if isinstance(event, Delta):
            print(event.text, end="", flush=True)
    print()
