"""Token ids to text, one token at a time, in whole characters.

A character may take several tokens (an emoji is four bytes, each perhaps its own token). The bytes of an unfinished character are
held until it is complete; only when the sequence really ends there do they become U+FFFD::

    tokens    f0 9f | ab | a0 | 20 61
    deltas    ""      ""   "🫠"  " a"
"""

from __future__ import annotations

import codecs

from tandem.text.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sequence. Constant work per token. Not thread-safe.

    For any ids, the joined results of ``push`` and one ``flush`` equal ``Tokenizer.decode`` of all of them. With byte-level
    vocabularies that is also what the ``tokenizers`` package decodes; with SentencePiece ones the leading blank is kept (it
    belongs to the answer, which continues a prompt), and bytes that are no UTF-8 give one U+FFFD per maximal faulty part.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = _Utf8Decoder(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that ``token_id`` completes; "" for special tokens and inside a character.

        Raises: KeyError for an id outside the vocabulary.
        """
        if token_id in self._tokenizer.special_ids:
            return ""
        return self._decoder.decode(self._tokenizer.piece(token_id))

    def flush(self) -> str:
        """The sequence has ended: what is held, as U+FFFD. Afterwards nothing is held."""
        return self._decoder.decode(b"", final=True)
