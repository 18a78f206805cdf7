"""One tritonserver process: start it on loopback, ask how it is, stop it and leave nothing behind."""

from __future__ import annotations

import ctypes
import http.client
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tandem.errors import SetupError
from tandem.server import logfile, reaper
from tandem.server.libpython import find_library_folder
from tandem.server.preflight import SHARED_MEMORY, check_ports, check_shared_memory, remove_stale_regions
from tandem.server.pytriton_files import find_triton_files, make_backend_folder
from tandem.server.stubs import Stub, find_by_region, find_stubs, is_running, living

ADDRESS = "127.0.0.1"  # Triton 2.51 has known remote holes and must never face a network (docs/architecture.md)
_ADMIN_HEADER = "tandem-admin"
_RESTRICTED_APIS = "model-repository,shared-memory,trace,logging"
_SHM_PREFIX = "tandem_"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class TritonServerConfig:
    """How a server is started. ``home`` is TANDEM_HOME for the models and holds logs and links; ``environment`` is added to theirs.

    ``exit_timeout_s``: how long running requests may go on after :meth:`TritonServer.stop`.
    """

    model_repository: Path
    home: Path
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    exit_timeout_s: int = 10
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def log_file(self) -> Path:
        return self.home / "logs" / f"triton-{self.grpc_port}.log"

    @property
    def http_url(self) -> str:
        return f"http://{ADDRESS}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{ADDRESS}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{ADDRESS}:{self.metrics_port}/metrics"


class TritonServer:
    """Owns one process, its shared memory and its log. ``start`` and ``stop`` may alternate. Not thread-safe."""

    def __init__(self, config: TritonServerConfig) -> None:
        self.config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self._shm_prefix = ""
        # Groups of endpoints that nobody needs are locked with a value that nobody is told. Other users of this machine can read it
        # in the process list: it keeps out what strays in, not an attacker with an account here.
        self._admin_token = secrets.token_hex(16)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process; returns before it is ready. It dies with the calling thread, so call from one that stays.

        Raises: SetupError with the remedy when something on this machine is not right; nothing runs then.
        """
        assert not self.is_running(), "stop the server before starting it again"
        config = self.config
        files = find_triton_files()
        library_folder = find_library_folder()
        check_shared_memory()
        remove_stale_regions(_SHM_PREFIX)
        if not config.model_repository.is_dir():
            raise SetupError(f"There is no model repository at {config.model_repository}; name one with --model-repository.")
        check_ports(
            ADDRESS,
            {
                "--triton-http-port": config.http_port,
                "--triton-grpc-port": config.grpc_port,
                "--triton-metrics-port": config.metrics_port,
            },
        )
        backends = make_backend_folder(files, config.home / "triton" / f"py{sys.version_info.major}{sys.version_info.minor}")
        self._shm_prefix = f"{_SHM_PREFIX}{os.getpid()}_{secrets.token_hex(4)}_"
        libraries = [str(files.libraries)] + ([str(library_folder)] if library_folder else [])
        logfile.rotate(config.log_file)
        with config.log_file.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  (a fixed program and arguments of our own)
                self._arguments(files.server, backends),
                env=self._environment(libraries),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to pass on
                preexec_fn=_die_with_parent,
            )
        self._reaper = self._start_reaper(self._process.pid)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        """Of the process that ended; negative is a signal; None while it runs or before it ran."""
        return None if self._process is None else self._process.poll()

    def is_ready(self) -> bool:
        """Triton's own answer: it runs and all models are loaded. It does not notice the death of a model's process."""
        return self.is_running() and self._get("/v2/health/ready") == 200

    def stubs(self) -> frozenset[Stub]:
        """The model processes that are alive."""
        return find_stubs(self._process.pid) if self._process is not None and self.is_running() else frozenset()

    def still_running(self, stubs: frozenset[Stub]) -> frozenset[Stub]:
        """Those of ``stubs`` that still run."""
        return living(stubs)

    def stop(self, grace_s: float | None = None) -> None:
        """SIGTERM, so that Triton ends what runs, then SIGKILL after the grace period.

        Removes processes and shared memory that were left over.

        ``grace_s`` 0 kills at once. Harmless when nothing runs.
        """
        process = self._process
        if process is None:
            return
        grace = self.config.exit_timeout_s + 5.0 if grace_s is None else grace_s
        stubs = find_stubs(process.pid)
        if process.poll() is None and grace > 0:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace)
        if process.poll() is None:
            process.kill()
            process.wait()
        _end_stubs(stubs | find_by_region(self._shm_prefix))
        for region in SHARED_MEMORY.glob(f"{self._shm_prefix}*"):
            region.unlink(missing_ok=True)
        self._process = None
        if self._reaper is not None:
            self._reaper.communicate()  # closes its input: it finds nothing left and ends
            self._reaper = None

    def log_tail(self, num_lines: int = 20) -> str:
        return logfile.tail(self.config.log_file, num_lines)

    def loaded_models(self) -> list[str]:
        """The models that are loaded so far, as the log tells."""
        return logfile.loaded_models(self.config.log_file)

    def load_errors(self) -> list[str]:
        """Why models did not load, as far as the log tells."""
        return logfile.load_errors(self.config.log_file)

    def _start_reaper(self, server_pid: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", reaper.__name__, self._shm_prefix, str(server_pid), str(self.config.exit_timeout_s + 3)]
        environment = {**os.environ, "PYTHONPATH": str(Path(reaper.__file__).resolve().parents[2])}
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)  # noqa: S603  (as above)

    def _arguments(self, server: Path, backends: Path) -> list[str]:
        config = self.config
        return [
            str(server),
            f"--model-repository={config.model_repository.resolve()}",
            f"--backend-directory={backends}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            "--disable-auto-complete-config",
            "--model-control-mode=explicit",
            "--load-model=*",
            "--strict-readiness=true",
            f"--exit-timeout-secs={config.exit_timeout_s}",
            f"--http-address={ADDRESS}",
            f"--grpc-address={ADDRESS}",
            f"--metrics-address={ADDRESS}",
            f"--http-port={config.http_port}",
            f"--grpc-port={config.grpc_port}",
            f"--metrics-port={config.metrics_port}",
            "--allow-gpu-metrics=false",
            f"--http-restricted-api={_RESTRICTED_APIS}:{_ADMIN_HEADER}={self._admin_token}",
            f"--grpc-restricted-protocol={_RESTRICTED_APIS}:{_ADMIN_HEADER}={self._admin_token}",
        ]

    def _environment(self, libraries: list[str]) -> dict[str, str]:
        """The environment of server and models.

        From Python 3.11 on the stub ignores PYTHONPATH. It takes prefix and packages from the ``python3`` that it finds first on
        PATH, so the folder of the running interpreter (of the virtual environment, if it is one) goes there.
        """
        environment = {**os.environ, **self.config.environment}
        if environment.get("LD_LIBRARY_PATH"):
            libraries = [*libraries, environment["LD_LIBRARY_PATH"]]
        environment["LD_LIBRARY_PATH"] = ":".join(libraries)
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', os.defpath)}"
        environment["TANDEM_HOME"] = str(self.config.home.resolve())
        return environment

    def _get(self, path: str) -> int | None:
        """The HTTP status; None when there is no answer."""
        connection = http.client.HTTPConnection(ADDRESS, self.config.http_port, timeout=2.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


def _die_with_parent() -> None:
    """In the child: have the kernel end it when the thread that started it ends, however that comes about."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end_stubs(stubs: frozenset[Stub]) -> None:
    """Returns when they have gone. They notice within a second that their server has; whoever has not by then is killed."""
    _wait_for_end(stubs, timeout_s=1.0)
    for stub in living(stubs):
        with suppress(ProcessLookupError):
            os.kill(stub.pid, signal.SIGKILL)
    _wait_for_end(stubs, timeout_s=10.0)  # the kernel takes its time to give back the memory of a killed process


def _wait_for_end(stubs: frozenset[Stub], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while any(is_running(stub.pid) for stub in stubs) and time.monotonic() < deadline:
        time.sleep(0.02)
