"""Puts the stand-in for ``triton_python_backend_utils`` where the adapters look for it."""

import sys

from tests.adapter import fake_pb_utils

sys.modules["triton_python_backend_utils"] = fake_pb_utils
