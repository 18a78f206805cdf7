# Tandem with its CPU engines and the gateway. Build from the root of the repository:
#   docker build -f deploy/docker/cpu.Dockerfile -t tandem .
# Run: docker run -p 8080:8080 -v "$PWD/keys:/keys:ro" -v tandem-cache:/var/lib/tandem --shm-size 1g tandem
FROM python:3.12-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends make libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 tandem

WORKDIR /opt/tandem
COPY --chown=tandem:tandem . .
RUN mkdir -p /var/lib/tandem && chown tandem:tandem /var/lib/tandem /opt/tandem
USER tandem
# Pinned, hashed packages only; nothing is resolved here.
RUN make VENV=/opt/tandem/.venv /opt/tandem/.venv/.serve-installed

ENV TANDEM_HOME=/var/lib/tandem \
    PATH=/opt/tandem/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1
VOLUME /var/lib/tandem
EXPOSE 8080
# Triton stays on loopback inside the container; the gateway refuses to listen here without keys.
CMD ["tandem", "serve", "--host", "0.0.0.0", "--api-key-file", "/keys/api-keys"]
