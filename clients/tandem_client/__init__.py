"""Clients of Tandem: typed results over HTTP or gRPC, blocking or asyncio.

>>> with TandemClient.http("http://127.0.0.1:8080") as client:  # doctest: +SKIP
...     answer = client.chat("Translate to French: good morning", sampling=Sampling(max_tokens=32))
...     print(answer.text, answer.path, answer.latency.ttft_s)
"""

from tandem_client.client import AsyncTandemClient, TandemClient
from tandem_client.guide import Guide
from tandem_client.text import Sampling
from tandem_client.tools import Tool

__all__ = ["AsyncTandemClient", "Guide", "Sampling", "TandemClient", "Tool"]
