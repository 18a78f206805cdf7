"""``python -m tandem_gateway``: the gateway alone, in front of a Triton that runs elsewhere on this machine or in this pod."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from tandem.errors import SetupError
from tandem_gateway.app import create_app
from tandem_gateway.keys import read_key_file
from tandem_gateway.logs import set_up_logging
from tandem_gateway.server import bind, serve
from tandem_gateway.settings import GatewaySettings
from tandem_gateway.triton_backend import TritonAddress, TritonBackend


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 after a drain, 2 with one sentence when the set-up is not right."""
    parser = argparse.ArgumentParser(
        prog="python -m tandem_gateway", description="OpenAI-compatible gateway in front of a Triton server."
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; other than loopback needs API keys (default %(default)s)"
    )
    parser.add_argument("--port", type=int, default=8080, help="port to listen on (default %(default)s)")
    parser.add_argument("--triton-grpc", default="127.0.0.1:8001", help="host:port of Triton's gRPC service (default %(default)s)")
    parser.add_argument("--triton-metrics", default=None, help="address of Triton's metrics, which are then part of /metrics")
    parser.add_argument("--api-key-file", type=Path, default=None, help="file with SHA-256 hashes of API keys, one a line")
    parser.add_argument(
        "--drain-grace-s", type=float, default=30.0, help="time for running answers to finish on stop (default %(default)s)"
    )
    args = parser.parse_args(argv)
    set_up_logging()
    try:
        keys = () if args.api_key_file is None else read_key_file(args.api_key_file)
        settings = GatewaySettings(host=args.host, port=args.port, api_keys=keys, drain_grace_s=args.drain_grace_s)
        listener = bind(settings)
    except SetupError as error:
        sys.stderr.write(f"{error.message}\n")
        return 2
    app = create_app(settings, TritonBackend(TritonAddress(args.triton_grpc, args.triton_metrics)))
    asyncio.run(serve(app, listener))
    return 0


if __name__ == "__main__":
    sys.exit(main())
