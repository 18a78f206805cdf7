"""``tandem serve``: engines, Triton and the gateway together. The options are here, the work is in :mod:`tandem_cli.serving`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tandem_cli.command import Command, add_home_argument


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_home_argument(parser)
    add_model_arguments(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address of the gateway; other than loopback needs --api-key-file (default %(default)s)"
    )
    parser.add_argument("--port", type=int, default=8080, help="port of the gateway (default %(default)s)")
    parser.add_argument("--triton-http-port", type=int, default=8000, metavar="PORT", help="on loopback (default %(default)s)")
    parser.add_argument("--triton-grpc-port", type=int, default=8001, metavar="PORT", help="on loopback (default %(default)s)")
    parser.add_argument("--triton-metrics-port", type=int, default=8002, metavar="PORT", help="on loopback (default %(default)s)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="per engine; 0: one per CPU (default %(default)s)")
    parser.add_argument(
        "--profile",
        default="cpu",
        metavar="NAME|FILE",
        help="settings of all models: a profile of ours, or a YAML file like build_engines/profiles/cpu.yaml (default %(default)s)",
    )
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help="SHA-256 hashes of API keys, one a line")
    parser.add_argument(
        "--drain-grace-s",
        type=float,
        default=30.0,
        metavar="S",
        help="time for answers to finish on stop (default %(default)s)",
    )


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Which weights the engines are built from."""
    text = "local Hugging Face folder or GGUF file of the {} path (default: SmolLM2-135M-Instruct)"
    parser.add_argument("--fast-model", metavar="PATH", help=text.format("fast"))
    parser.add_argument("--slow-model", metavar="PATH", help=text.format("slow"))


def _run(args: argparse.Namespace) -> int:
    # The server side is imported only by the command that needs it.
    from tandem_cli.serving import ServeOptions, run_server

    return run_server(
        ServeOptions(
            home=args.home,
            fast_model=args.fast_model,
            slow_model=args.slow_model,
            host=args.host,
            port=args.port,
            triton_http_port=args.triton_http_port,
            triton_grpc_port=args.triton_grpc_port,
            triton_metrics_port=args.triton_metrics_port,
            threads=args.threads,
            profile=Path(args.profile) if args.profile.endswith((".yaml", ".yml")) else args.profile,
            api_key_file=args.api_key_file,
            drain_grace_s=args.drain_grace_s,
        )
    )


COMMAND = Command("serve", "build what is missing, then run Triton and the gateway", _add_arguments, _run)
