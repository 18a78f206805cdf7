"""Words as token-id sequences: stop words and bad words, looked at over the completion only, never over the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class WordList:
    """A fixed set of token-id sequences, none of them empty."""

    __slots__ = ("_longer", "_singles")

    def __init__(self, words: Iterable[tuple[int, ...]]) -> None:
        unique = sorted(set(words))
        self._singles = frozenset(word[0] for word in unique if len(word) == 1)
        self._longer = tuple(word for word in unique if len(word) > 1)

    def __bool__(self) -> bool:
        return bool(self._singles or self._longer)

    def is_completed_by(self, output_ids: Sequence[int]) -> bool:
        """True when the completion ends with one of the words."""
        if output_ids[-1] in self._singles:
            return True
        return any(tuple(output_ids[-len(word) :]) == word for word in self._longer)

    def completing_ids(self, output_ids: Sequence[int]) -> list[int]:
        """The token ids that would complete a word if they came next."""
        ids = list(self._singles)
        for word in self._longer:
            prefix = word[:-1]
            if len(output_ids) >= len(prefix) and tuple(output_ids[-len(prefix) :]) == prefix:
                ids.append(word[-1])
        return ids
