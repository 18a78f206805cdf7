"""The composition root: engines → Triton under its supervisor → gateway. The only place that knows all three.

The gateway listens as soon as the engines are there, so that it is live (and not ready) while Triton loads and warms up.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from build_engines.encoder import ensure_encoder
from build_engines.ensure import ensure_engines
from build_engines.manifest import read_manifest
from build_engines.progress import Reporter, make_reporter
from tandem.errors import SetupError
from tandem.server.supervisor import Supervisor
from tandem.server.triton_process import TritonServer, TritonServerConfig
from tandem_cli.repository import engine_set_hash, write_repository
from tandem_gateway.app import create_app
from tandem_gateway.keys import read_key_file
from tandem_gateway.logs import set_up_logging
from tandem_gateway.server import bind, serve
from tandem_gateway.settings import GatewaySettings
from tandem_gateway.triton_backend import TritonAddress, TritonBackend

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What ``tandem serve`` was told. ``threads`` 0 means one per CPU; a model that is None is the default one."""

    home: Path
    fast_model: str | None
    slow_model: str | None
    host: str
    port: int
    triton_http_port: int
    triton_grpc_port: int
    triton_metrics_port: int
    threads: int
    profile: str | Path
    api_key_file: Path | None
    drain_grace_s: float

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise SetupError(f"--threads: got {self.threads}; give 0 or more", field="threads")


def run_server(options: ServeOptions) -> int:
    """Serve until a signal; 0 after a drain. Raises: SetupError when something on this machine is not right."""
    set_up_logging()
    keys = () if options.api_key_file is None else read_key_file(options.api_key_file)
    settings = GatewaySettings(host=options.host, port=options.port, api_keys=keys, drain_grace_s=options.drain_grace_s)
    reporter = make_reporter()
    with bind(settings) as listener:  # before the engines are built: a taken port is said at once
        engines = ensure_engines(options.home, options.fast_model, options.slow_model, reporter)
        ensure_encoder(options.home, reporter)
        manifests = {name: read_manifest(folder) for name, folder in engines.items()}
        repository = options.home / "repositories" / str(options.triton_grpc_port)
        write_repository(repository, options.profile, manifests, options.threads)
        triton = TritonServerConfig(
            model_repository=repository,
            home=options.home,
            http_port=options.triton_http_port,
            grpc_port=options.triton_grpc_port,
            metrics_port=options.triton_metrics_port,
        )
        settings = replace(settings, system_fingerprint=engine_set_hash(manifests))
        asyncio.run(_serve(settings, listener, triton, reporter))
    return 0


async def _serve(settings: GatewaySettings, listener: socket.socket, triton: TritonServerConfig, reporter: Reporter) -> None:
    supervisor = Supervisor(TritonServer(triton), on_event=_log.warning)
    app = create_app(settings, TritonBackend(TritonAddress(triton.grpc_url, triton.metrics_url)))
    stop = asyncio.Event()
    failure: list[SetupError] = []
    loop = asyncio.get_running_loop()

    def start_triton() -> None:
        try:
            supervisor.start()
        except SetupError as error:
            failure.append(error)
            loop.call_soon_threadsafe(stop.set)

    reporter.message(f"starting Triton and loading its models (log: {triton.log_file})")
    starter = threading.Thread(target=start_triton, name="start-triton")
    starter.start()
    try:
        port = listener.getsockname()[1]
        await serve(app, listener, stop=stop, on_ready=lambda: _announce(settings.host, port))
        reasons = tuple(failure)  # what ends a start from here on is our own stop
    finally:
        await asyncio.to_thread(supervisor.stop)
        await asyncio.to_thread(starter.join)
    if reasons:
        raise reasons[0]


def _announce(host: str, port: int) -> None:
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    body = '{"model": "tandem", "messages": [{"role": "user", "content": "Say hello."}], "stream": true}'
    sys.stdout.write(
        f"Tandem is ready: {url}\n"
        f"try: curl -sN {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'\n"
        f"or:  tandem chat --url {url}\n"
    )
    sys.stdout.flush()
