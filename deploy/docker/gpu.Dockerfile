# Tandem's models on NVIDIA's Triton with TensorRT-LLM 1.2.1. Build from the root of the repository:
#   docker build -f deploy/docker/gpu.Dockerfile --build-arg BASE_IMAGE=NAME:26.07-trtllm-python-py3@sha256:DIGEST -t tandem-gpu .
# There is no default: engines are bound to one build of the base image, so its digest must be given.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}

# What the router, preprocessing and the adapters import beside TensorRT-LLM's own packages; those stay as they are.
COPY deploy/docker/gpu-requirements.txt /tmp/gpu-requirements.txt
RUN python3 -m pip install --no-cache-dir --no-deps -r /tmp/gpu-requirements.txt && rm /tmp/gpu-requirements.txt

COPY . /opt/tandem
ENV PYTHONPATH=/opt/tandem/python_backend:/opt/tandem/clients:/opt/tandem \
    PYTHONUNBUFFERED=1
RUN printf '#!/bin/sh\nexec python3 -m tandem_cli.main "$@"\n' > /usr/local/bin/tandem && chmod 755 /usr/local/bin/tandem

WORKDIR /opt/tandem
# Loopback only: the gateway in the same network namespace is the edge. Several engines in one server need the orchestrator mode.
ENV TRTLLM_ORCHESTRATOR=1 TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1
CMD ["mpirun", "--allow-run-as-root", "-n", "1", "tritonserver", "--model-repository=/repository", \
     "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1", \
     "--disable-auto-complete-config", "--exit-on-error=true", \
     "--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
