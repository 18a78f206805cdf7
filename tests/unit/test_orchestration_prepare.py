"""Prompts to ids and features: exactly one prompt, bounded work, refusals by field (BC-03b, BC-04, BC-06)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tandem.errors import ContextLengthExceeded, InvalidRequest, SetupError, TandemError, Unsupported
from tandem.orchestration.prepare import PreparedPrompt, PromptInput, PromptPreparer
from tandem.routing.features import RouteFeatures
from tandem.text.tokenizer import Tokenizer
from tests.text_factories import END, START, make_tokenizer, sentencepiece_spec, tokenizer_config
from tests.unit.orchestration_fakes import TOKENIZER, ids_of

LIMIT = 256
PREPARER = PromptPreparer(TOKENIZER, LIMIT)


def chat(*messages: dict[str, Any], **fields: Any) -> PreparedPrompt:
    return PREPARER.prepare(PromptInput(messages=json.dumps(list(messages)), **fields))


def features_of(prepared: PreparedPrompt) -> RouteFeatures:
    return RouteFeatures.from_json(prepared.route_features)


def test_chat_gives_template_ids_and_features_of_the_last_user_message() -> None:
    prepared = chat(
        {"role": "system", "content": "Prove everything"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "fine"},
        {"role": "user", "content": "Translate this"},
        task="t",
        api_path="/v1/chat/completions",
        source="s",
        path="slow",
    )
    assert prepared.input_ids.count(START) == 5
    assert features_of(prepared) == RouteFeatures(
        "Translate this", len(prepared.input_ids), 2, "slow", "t", "/v1/chat/completions", "s", False, False, "en"
    )


def test_raw_text_is_encoded_as_it_is() -> None:
    prepared = PREPARER.prepare(PromptInput(text_input="  the <|im_end|> fox"))
    assert prepared.input_ids == ids_of("  the <|im_end|> fox")
    assert END not in prepared.input_ids
    assert (features_of(prepared).num_turns, features_of(prepared).text) == (1, "  the <|im_end|> fox")


def test_raw_text_gets_the_start_token_the_model_wants() -> None:
    tokenizer = Tokenizer(sentencepiece_spec(), tokenizer_config(eos_token="</s>", chat_template=None))
    assert PromptPreparer(tokenizer, LIMIT).prepare(PromptInput(text_input="hi")).input_ids[0] == 1


@pytest.mark.parametrize("message", [{"role": "user", "content": ""}, {"role": "system", "content": "only"}])
def test_empty_user_message_and_lone_system_message_are_legal(message: dict[str, str]) -> None:
    prepared = chat(message)
    assert prepared.input_ids
    assert features_of(prepared).num_turns == 1


@pytest.mark.parametrize(
    ("prompt", "error", "field"),
    [
        (PromptInput(), InvalidRequest, "text_input"),
        (PromptInput(text_input="x", messages="[]"), InvalidRequest, "text_input"),
        (PromptInput(text_input=""), InvalidRequest, "text_input"),
        (PromptInput(text_input="\ud800"), InvalidRequest, "text_input"),
        (PromptInput(messages=""), InvalidRequest, "messages"),
        (PromptInput(messages="[]"), InvalidRequest, "messages"),
        (PromptInput(messages="{"), InvalidRequest, "messages"),
        (PromptInput(messages="[" * 100_000), InvalidRequest, "messages"),
        (PromptInput(messages='[{"role": "user", "content": NaN}]'), InvalidRequest, "messages"),
        (PromptInput(messages='[{"role": "user", "content": "\\ud800"}]'), InvalidRequest, "messages"),
        (PromptInput(messages='[{"role": "user"}]'), InvalidRequest, "messages[0].content"),
        (
            PromptInput(messages='[{"role": "user", "content": [{"type": "image_url"}]}]'),
            Unsupported,
            "messages[0].content[0].type",
        ),
        (PromptInput(text_input="x", path="medium"), InvalidRequest, "path"),
        (PromptInput(text_input="x", task="t" * 1000), InvalidRequest, "task"),
    ],
)
def test_faulty_prompt_is_refused_by_field(prompt: PromptInput, error: type[TandemError], field: str) -> None:
    with pytest.raises(error) as caught:
        PREPARER.prepare(prompt)
    assert caught.value.field == field


def test_prompt_of_exactly_the_context_is_refused_and_one_less_is_not() -> None:
    assert len(ids_of("the " * 127 + "fox")) < LIMIT
    for num_tokens in (LIMIT - 1, LIMIT):
        prompt = PromptInput(text_input="0" * num_tokens)
        if num_tokens < LIMIT:
            assert len(PREPARER.prepare(prompt).input_ids) == num_tokens
        else:
            with pytest.raises(ContextLengthExceeded, match=r"text_input: got 256 prompt tokens; the context holds 256 tokens"):
                PREPARER.prepare(prompt)


def test_too_long_chat_names_messages_with_length_and_limit() -> None:
    with pytest.raises(ContextLengthExceeded, match=r"messages: got \d+ prompt tokens; the context holds 256 tokens") as caught:
        chat({"role": "user", "content": "word " * 300})
    assert caught.value.field == "messages"


@pytest.mark.parametrize("field", ["text_input", "messages"])
def test_huge_prompt_is_refused_without_tokenizing_all_of_it(field: str) -> None:
    text = "word " * 1_000_000
    content = text if field == "text_input" else json.dumps([{"role": "user", "content": text}])
    start = time.process_time()
    with pytest.raises(ContextLengthExceeded, match=rf"{field}: got more than \d+ prompt tokens"):
        PREPARER.prepare(PromptInput(**{field: content}))
    assert time.process_time() - start < 0.5


def test_model_without_chat_template_takes_raw_text_only() -> None:
    preparer = PromptPreparer(make_tokenizer(chat_template=None), LIMIT)
    assert preparer.prepare(PromptInput(text_input="x")).input_ids
    with pytest.raises(InvalidRequest, match=r"messages.*no chat template"):
        preparer.prepare(PromptInput(messages='[{"role": "user", "content": "x"}]'))


def test_tokenizer_without_end_token_is_refused_at_start() -> None:
    with pytest.raises(SetupError, match="eos_token"):
        PromptPreparer(make_tokenizer(eos_token=None), LIMIT)
