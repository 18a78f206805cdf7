"""API keys: kept as hashes, read from a file, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from tandem.errors import SetupError


def hash_api_key(key: str) -> str:
    """How a key is kept: SHA-256, lower-case hex."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_known_key(key: str, hashes: Iterable[str]) -> bool:
    """Every hash is compared, in constant time: the time tells nothing about which one is near."""
    given = hash_api_key(key)
    matches = [hmac.compare_digest(given, known) for known in hashes]
    return any(matches)


def tenant_of(key: str | None) -> str:
    """The name under which an authenticated key's prompts are cached: 128 bits that do not tell the key. None: no keys are set."""
    return "anonymous" if key is None else hmac.new(key.encode(), b"tandem cache tenant", hashlib.sha256).hexdigest()[:32]


def cache_salt(tenant: str, narrow: str | None) -> str:
    """The salt of one request. What the caller gives divides its own tenant further and can reach no other."""
    if narrow is None:
        return tenant
    return f"{tenant}/{hmac.new(tenant.encode(), narrow.encode(), hashlib.sha256).hexdigest()[:32]}"


def read_key_file(path: Path) -> tuple[str, ...]:
    """Hashes, one a line; empty lines and lines that begin with # are left out. Raises: SetupError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"--api-key-file: {path} cannot be read ({error})", field="api-key-file") from error
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
