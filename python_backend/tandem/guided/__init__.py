"""Guided decoding: what the whole answer must match, from the caller's text to the mask of the next token.

``check_guide`` is the router's gate; ``compiler`` and ``matcher`` work in the engines. See docs/guided.md.
"""
