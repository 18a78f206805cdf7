"""Settings of the gateway; checked once, passed in, never looked up."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from tandem.errors import SetupError

_SHA256_HEX = re.compile(r"[0-9a-f]{64}")


def is_loopback(host: str) -> bool:
    """True for an address that no other machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """``api_keys`` are hashes of :func:`tandem_gateway.keys.hash_api_key`; without any, whoever reaches the port may use it."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    system_fingerprint: str | None = None
    max_body_bytes: int = 1 << 20
    body_timeout_s: float = 30.0
    max_in_flight: int = 128
    max_choices: int = 16
    max_prompts: int = 8
    request_timeout_s: float = 600.0
    ping_interval_s: float = 15.0
    drain_grace_s: float = 30.0
    health_interval_s: float = 1.0
    warmup: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SetupError(f"port: got {self.port}; give a number from 0 to 65535", field="port")
        for name in ("max_body_bytes", "max_in_flight", "max_choices", "max_prompts"):
            if getattr(self, name) < 1:
                raise SetupError(f"{name}: got {getattr(self, name)}; give at least 1", field=name)
        for name in ("body_timeout_s", "request_timeout_s", "ping_interval_s", "drain_grace_s", "health_interval_s"):
            if not getattr(self, name) > 0:
                raise SetupError(f"{name}: got {getattr(self, name)}; give a number above 0", field=name)
        if any(_SHA256_HEX.fullmatch(key) is None for key in self.api_keys):
            # The wrong entry may be a key in clear text: never repeat it.
            raise SetupError("api_keys: an entry is not a SHA-256 hash in lower-case hex; hash the keys first", field="api_keys")
        if not self.api_keys and not is_loopback(self.host):
            raise SetupError(
                f"host: got {self.host}; without API keys the gateway listens on loopback only, so set api keys or use 127.0.0.1",
                field="host",
            )
