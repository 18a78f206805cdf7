"""Hypothesis runs the same examples every time and never fails on a slow machine."""

from hypothesis import settings

settings.register_profile("tandem", derandomize=True, deadline=None)
settings.load_profile("tandem")
