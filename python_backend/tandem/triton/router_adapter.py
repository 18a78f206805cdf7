"""The router model of Triton: tensors in front of :class:`tandem.orchestration.service.RouterService`.

Each row of a request runs in a thread of its own, since a BLS call blocks its thread between two responses; awaiting it inside an
``async def execute`` would block every other request of the model instance (Triton 2.51).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import triton_python_backend_utils as pb_utils

from tandem.config import RouterModelConfig, router_config, tandem_home
from tandem.errors import Overloaded, SetupError, TandemError
from tandem.guided.capabilities import CAPABILITIES
from tandem.guided.gate import GuideGate
from tandem.orchestration.admission import AdmissionConfig
from tandem.orchestration.config import EngineInfo, RouterConfig, load_tokenizers
from tandem.orchestration.flow import Flow
from tandem.orchestration.port import RouterChunk
from tandem.orchestration.service import RouterService
from tandem.orchestration.stage_building import build_stages
from tandem.routing.rules_file import load_policy
from tandem.triton.bls import BlsEnginePort
from tandem.triton.bls_classifier import BlsClassifier
from tandem.triton.cancellation import CancellationWatcher
from tandem.triton.errors_table import from_exception
from tandem.triton.logs import use_triton_log
from tandem.triton.model_args import model_parameters
from tandem.triton.responses import ResponseStream, read_inputs
from tandem.triton.route_metrics import RouteMetrics
from tandem.triton.router_request import encode_chunk, read_requests
from tandem.triton.tensors import RowReader

_METRICS_PERIOD_S = 0.25

_log = logging.getLogger(__name__)


class RouterModel:
    """The router behind one Triton model. ``execute`` returns at once; each row is answered by a thread of the pool."""

    @classmethod
    def load(cls, args: Mapping[str, str]) -> RouterModel:
        """Build from what Triton gives ``initialize``. Raises: TritonModelException with one sentence."""
        use_triton_log(args["model_name"])
        try:
            config = router_config(args["model_name"], model_parameters(args), tandem_home(os.environ))
            return cls(config, _service(config))
        except SetupError as error:
            raise pb_utils.TritonModelException(error.message) from None

    def __init__(self, config: RouterModelConfig, service: RouterService) -> None:
        self._service = service
        self._max_rows = config.max_concurrent_requests + config.max_queue_size
        self._num_rows = 0
        self._lock = threading.Lock()  # guards _num_rows
        self._watcher = CancellationWatcher(config.cancellation_check_period_ms / 1e3)
        self._metrics = RouteMetrics(config.name, service.counts, _METRICS_PERIOD_S)
        self._pool = ThreadPoolExecutor(config.max_concurrent_requests, thread_name_prefix="tandem-flow")

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            stream = ResponseStream(request)
            try:
                self._accept(request, stream)
            except Exception as error:
                stream.fail(from_exception(error, "the router"))

    def close(self) -> None:
        """Wait for the running flows; each ends with its engine's last response."""
        self._pool.shutdown(wait=True)
        self._watcher.close()
        self._metrics.close()
        self._service.close()

    def _accept(self, request: pb_utils.InferenceRequest, stream: ResponseStream) -> None:
        inputs = read_inputs(request)
        request_id = request.request_id()
        if RowReader(inputs, 0).flag("stop"):
            # An id that is empty or unknown is no error here: whoever disconnects cannot know whether the answer had ended.
            self._service.stop(request_id)
            stream.finish()
            return
        rows = read_requests(inputs, request_id)
        self._take_seats(len(rows))
        flows = [self._service.open(row) for row in rows]
        opened = _OpenRequest(stream, flows)
        opened.watch_key = self._watcher.watch(stream.is_cancelled, opened.cancel)
        for flow in flows:
            self._pool.submit(self._run, opened, flow)

    def _run(self, opened: _OpenRequest, flow: Flow) -> None:
        """One row, in a thread of the pool. Raises nothing."""
        try:
            self._service.run(flow, opened.emit)
        except Exception as error:
            opened.fail(from_exception(error, "the router"))
        finally:
            self._take_seats(-1)
            if opened.end_row():
                self._watcher.forget(opened.watch_key)
                opened.finish()

    def _take_seats(self, num_rows: int) -> None:
        """Raises: Overloaded when threads and queue are full."""
        with self._lock:
            if num_rows > 0 and self._num_rows + num_rows > self._max_rows:
                raise Overloaded(f"the router is full ({self._max_rows} requests); try again later")
            self._num_rows += num_rows


class _OpenRequest:
    """One Triton request while its rows run, each in its own thread.

    The first error of a row ends the whole request and is sent as its final response: an error that is not final leaves Triton
    2.51 with an inference of the ensemble that counts as in flight for ever, and every stop of the server then takes its full
    exit timeout.
    """

    def __init__(self, stream: ResponseStream, flows: Sequence[Flow]) -> None:
        self.watch_key = 0
        self._stream = stream
        self._flows = flows
        self._lock = threading.Lock()  # guards the two below
        self._rows_left = len(flows)
        self._error: TandemError | None = None

    def emit(self, chunk: RouterChunk) -> None:
        if self._error is None:
            self._stream.send(encode_chunk(chunk))

    def fail(self, error: TandemError) -> None:
        """Keep the first error and end the other rows."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self.cancel()

    def finish(self) -> None:
        """After the last row: the error or the bare final flag."""
        if self._error is None:
            self._stream.finish()
        else:
            self._stream.fail(self._error)

    def cancel(self) -> None:
        for flow in self._flows:
            flow.cancel()

    def end_row(self) -> bool:
        """True for the last row."""
        with self._lock:
            self._rows_left -= 1
            return self._rows_left == 0


def _service(config: RouterModelConfig) -> RouterService:
    """Raises: SetupError."""
    tokenizers = load_tokenizers(config.engine_dirs)
    engines = tuple(
        EngineInfo(name, config.max_seq_len, tokenizers[name], config.kv_cache_tokens, config.engine_capabilities[name])
        for name in config.engine_dirs
    )
    guides = GuideGate(CAPABILITIES[config.engine_profile])
    router = RouterConfig(engines, config.default_max_tokens, _admission(config), guides)
    port = BlsEnginePort(router.tokenizer.vocab_size, config.tokens_per_block)
    policy = load_policy(
        config.rules_file,
        lambda settings: build_stages(settings, BlsClassifier(), port, router.tokenizer, config.tokens_per_block),
    )
    return RouterService(router, policy, port)


def _admission(config: RouterModelConfig) -> AdmissionConfig:
    return AdmissionConfig(
        max_in_flight=config.max_in_flight,
        max_waiting=config.max_waiting,
        policy=config.scheduling_policy,
        slo_ttft_ms=config.slo_ttft_ms,
    )
