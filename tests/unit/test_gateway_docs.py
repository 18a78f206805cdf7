"""docs/api.md is true: every field of the schema and of the table of refusals stands in it, every error code too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineFailure,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    Unsupported,
)
from tandem_gateway.fields import CHAT, COMPLETION
from tandem_gateway.schemas import ChatBody, CompletionBody, Message
from tandem_gateway.settings import GatewaySettings

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
FIELDS = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, *CHAT, *COMPLETION})
ERRORS = (ContextLengthExceeded, DeadlineExceeded, EngineFailure, InvalidRequest, ModelNotFound, Overloaded, Unsupported)


@pytest.mark.parametrize("name", FIELDS)
def test_field_when_in_the_code_then_stands_in_the_docs(name: str) -> None:
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("code", [error.code for error in ERRORS])
def test_error_code_when_in_the_code_then_stands_in_the_docs(code: str) -> None:
    assert f"`{code}`" in TEXT


def test_limits_when_stated_in_the_docs_then_are_the_defaults() -> None:
    settings = GatewaySettings()
    assert f"1 to {settings.max_choices} answers" in TEXT
    assert f"up to {settings.max_prompts} texts" in TEXT
    assert f"longer than {settings.request_timeout_s:g} s" in TEXT
    assert f"After {settings.ping_interval_s:g} s of silence" in TEXT
    assert settings.max_body_bytes == 1 << 20
    assert "more than 1 MiB" in TEXT


def test_roles_when_stated_in_the_docs_then_are_those_of_the_schema() -> None:
    roles = Message.model_fields["role"].annotation.__args__  # type: ignore[union-attr]
    assert all(role in TEXT for role in roles)
