"""Names of KV blocks by content: a chain of SHA-256 digests over the salt and all tokens up to the end of a block.

::

    digest 0 = H(H(salt) · tokens 0..B-1)      digest 1 = H(digest 0 · tokens B..2B-1)      ...

Keys and values of a token depend on every token before it, so a block may stand in for another only when the whole prefix is
equal; the chain makes one comparison say so. 256 bits and a cryptographic hash, because an equal digest hands over another
request's memory: nobody must be able to construct one. Requests with different salts never share a block.
"""

from __future__ import annotations

from hashlib import sha256

from tandem.models.decoder import LongArray


def root_digest(salt: str) -> bytes:
    """What the chain of every sequence with this salt begins with."""
    return sha256(b"tandem kv block\0" + salt.encode("utf-8", "surrogatepass")).digest()


def extend_chain(digests: list[bytes], root: bytes, token_ids: LongArray, block_size: int, num_blocks: int) -> None:
    """Append the digests of the blocks up to ``num_blocks``, all of them full. Modifies ``digests``."""
    for number in range(len(digests), num_blocks):
        parent = digests[-1] if digests else root
        digests.append(sha256(parent + token_ids[number * block_size : (number + 1) * block_size].tobytes()).digest())
