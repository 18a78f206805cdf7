"""The router as plain Python: requests in, chunks out, stops by id. ``tandem.triton`` puts tensors around it."""

from __future__ import annotations

from tandem.orchestration.admission import AdmissionQueue
from tandem.orchestration.config import RouterConfig
from tandem.orchestration.decider import Decider
from tandem.orchestration.flow import Flow
from tandem.orchestration.port import Emit, EnginePort, RouterRequest
from tandem.orchestration.registry import FlowRegistry
from tandem.orchestration.route_counts import RouteCounts
from tandem.routing.policy import RoutingPolicy


class RouterService:
    """Thread-safe; owns no thread. One thread per request calls ``open`` and ``run`` (or ``handle``)::

    flow = service.open(request)        # from here on a stop under the request id reaches it
    service.run(flow, emit)             # blocks until the last chunk
    service.stop(request_id)            # from any other thread, or
    flow.cancel()
    """

    def __init__(self, config: RouterConfig, policy: RoutingPolicy, port: EnginePort) -> None:
        """Raises: SetupError when the policy may choose an engine that ``config`` does not list."""
        config.check_paths(policy.paths)
        self._config = config
        self._policy = policy
        self._port = port
        self._registry = FlowRegistry()
        self._admission = {engine.name: AdmissionQueue(engine.name, config.admission) for engine in config.engines}
        self._decider = Decider(config, policy, self._admission)

    def open(self, request: RouterRequest) -> Flow:
        """Register a request. ``run`` must follow, or the registration stays. Open all rows of a request before running one.

        Raises nothing a caller can cause.
        """
        flow = Flow(request, self._config, self._decider, self._port, self._admission)
        self._registry.add(flow)
        return flow

    def run(self, flow: Flow, emit: Emit) -> None:
        """Answer an opened request; see :meth:`Flow.run` for what it raises."""
        try:
            flow.run(emit)
        finally:
            self._registry.remove(flow)

    def handle(self, request: RouterRequest, emit: Emit) -> None:
        """``open`` and ``run`` in one."""
        self.run(self.open(request), emit)

    def stop(self, request_id: str) -> int:
        """Cancel the flows of a request (one per row); returns how many ran. Unknown ids are no error."""
        return self._registry.stop(request_id)

    def close(self) -> None:
        """Call when nothing runs any more."""
        self._policy.close()

    @property
    def counts(self) -> RouteCounts:
        """What was decided so far."""
        return self._decider.counts

    @property
    def num_running(self) -> int:
        """Requests with an id that were opened and have not ended."""
        return self._registry.num_running
