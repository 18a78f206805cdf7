"""Guided decoding through the ensemble on the real server with the real engines."""

from __future__ import annotations

import json
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import numpy as np
import pytest

from tandem.errors import TandemError, from_wire
from tests.e2e.conftest import RunningTriton
from tests.e2e.test_triton_ensemble import reasons_of, tensors, text_of, texts
from tests.e2e.test_triton_server import assert_idle
from tests.e2e.triton_calls import Reply, Stream, ask, engine_tensors, token_ids

pytestmark = [pytest.mark.e2e, pytest.mark.weights]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["person", "animal"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
EMOJI = "🫠é漢🏳️‍🌈" * 3
CAT_OR_DOG = "(cat|dog)"


def guided(guide_type: str, guide: object, *, content: str = "Describe Bob, who is 33.", **more):
    text = guide if isinstance(guide, str) else json.dumps(guide)
    messages = json.dumps([{"role": "user", "content": content}])
    return tensors(messages=messages, **more) | {
        "guided_decoding_guide_type": texts(guide_type),
        "guided_decoding_guide": texts(text),
    }


def error_of(replies: list[Reply]) -> TandemError:
    assert replies[-1].error is not None, text_of(replies)
    error = from_wire(str(replies[-1].error))
    assert error is not None, replies[-1].error
    return error


@pytest.mark.parametrize("path", ["fast", "slow"])
@pytest.mark.parametrize("stream", [True, False])
def test_guided_when_json_schema_then_a_valid_document(triton: RunningTriton, path: str, stream: bool):
    replies = ask(triton.config.grpc_url, "tandem", guided("json_schema", PERSON, max_tokens=100, stream=stream, path=path))
    jsonschema.validate(json.loads(text_of(replies)), PERSON)
    assert reasons_of(replies) == ["stop"]
    assert_idle(triton.config)


def test_guided_when_text_is_forced_then_rare_characters_arrive_whole(triton: RunningTriton):
    """BC-01."""
    joined = []
    for stream in (True, False):
        replies = ask(triton.config.grpc_url, "tandem", guided("regex", re.escape(EMOJI), max_tokens=200, stream=stream))
        joined.append(text_of(replies))
        assert all("�" not in reply.outputs["text_output"].item().decode() for reply in replies if reply.outputs)
        last = [reply for reply in replies if reply.outputs][-1]
        joined.append(last.outputs["num_output_tokens"].item())
    assert joined[0] == joined[2] == EMOJI
    assert joined[1] == joined[3] > len(EMOJI)


@pytest.mark.parametrize("stream", [True, False])
def test_guided_when_log_probs_then_finite_and_without_masked_alternatives(triton: RunningTriton, stream: bool):
    """BC-07."""
    more = {"return_log_probs": np.array([[True]]), "top_logprobs": np.array([[5]], np.int32)}
    replies = ask(triton.config.grpc_url, "tandem", guided("regex", "(yes|no)", stream=stream, **more))
    assert text_of(replies) in ("yes", "no")
    contents = [reply.outputs["log_probs_content"].item().decode() for reply in replies if reply.outputs]
    reports = [report for content in contents if content for report in json.loads(content)]
    assert reports
    for report in reports:
        assert -9999.0 <= report["logprob"] <= 0.0
        assert 1 <= len(report["top_logprobs"]) <= 5
        assert all(top["token"] in "yes" or top["token"] in "no" for top in report["top_logprobs"])
        assert all(-9999.0 <= top["logprob"] <= 0.0 for top in report["top_logprobs"])


FAULTY = [
    ("json_schema", {"type": "objekt"}, "$.type"),
    ("json_schema", {"type": "object", "properties": 5}, "$.properties"),
    ("json_schema", {"type": "string", "pattern": "^(abc$"}, "$.pattern"),
    ("json_schema", "not json", "valid JSON"),
    ("json_schema", {"$ref": "#"}, "no finite value"),
    ("json_schema", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "no finite value"),
    ("json_schema", {"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "no finite value"),
    ("json_schema", {"$ref": "http://127.0.0.1:9/x"}, "nothing is fetched"),
    ("ebnf_grammar", "root ::= noun", "line 1: noun"),
    ("ebnf_grammar", 'x ::= "a"', "rule root"),
    ("ebnf_grammar", 'root ::= "a', "not closed"),
    ("ebnf_grammar", 'root ::= "a"\nroot ::= "b"', "line 2"),
    ("yaml", "a: b", "json_schema"),
]


def test_guided_when_faulty_then_refused_by_itself_while_a_stream_runs(triton: RunningTriton):
    """BC-11, BC-14 and BC-16: never free text, the running stream does not stall, and a hundred repeats change nothing."""
    with Stream(triton.config.grpc_url, "tandem", tensors(max_tokens=200), "free") as free:
        free.next()
        gaps = []
        for number in range(100):
            guide_type, guide, said = FAULTY[number % len(FAULTY)]
            started = time.perf_counter()
            error = error_of(ask(triton.config.grpc_url, "tandem", guided(guide_type, guide)))
            gaps.append(time.perf_counter() - started)
            assert error.field in ("guided_decoding_guide", "guided_decoding_guide_type")
            assert said in error.message
        assert max(gaps) < 2.0
        rest = list(free.replies())
        assert rest[-1].error is None
    assert_idle(triton.config)


def test_engine_when_asked_directly_then_refuses_too(triton: RunningTriton):
    for kind, guide, said in (("yaml", "x", "guided_decoding_guide_type"), ("regex", "(a", "unclosed")):
        more = {"guided_decoding_guide_type": texts(kind), "guided_decoding_guide": texts(guide)}
        replies = ask(triton.config.grpc_url, "fast_int8", engine_tensors(**more))
        assert said in str(replies[-1].error)
    more = {"guided_decoding_guide_type": texts("regex"), "guided_decoding_guide": texts(CAT_OR_DOG)}
    assert token_ids(ask(triton.config.grpc_url, "fast_int8", engine_tensors(**more)))
    assert_idle(triton.config)


PATTERNS = {
    r"^\d{4}-\d{2}$": {},
    r"^person_\S+$": {"maxLength": 14},
    r"^[\w-]{3,8}$": {},
    r"^(https:\/\/)?ex\.org\/[a-z]{1,5}$": {},
}


@pytest.mark.parametrize(("pattern", "more"), PATTERNS.items())
def test_guided_when_pattern_has_shorthand_then_holds_at_any_depth(triton: RunningTriton, pattern: str, more: dict):
    """BC-13."""
    text = {"type": "string", "pattern": pattern, **more}
    nested = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "object", "properties": {"v": text}, "required": ["v"]}, "maxItems": 1}
        },
        "required": ["a"],
    }
    for schema in (text, nested):
        replies = ask(triton.config.grpc_url, "tandem", guided("json_schema", schema, max_tokens=80))
        document = json.loads(text_of(replies))
        jsonschema.validate(document, schema)
        assert reasons_of(replies) == ["stop"]


def test_guided_when_biased_to_blanks_then_ends_and_when_cut_then_length(triton: RunningTriton):
    """BC-15."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 5}},
        "required": ["a"],
        "additionalProperties": False,
    }
    blanks = np.array([[198, 216, 220]], np.int32)  # newline and space among them
    bias = {"logit_bias_ids": blanks, "logit_bias_values": np.full((1, 3), 100.0, np.float32)}
    replies = ask(triton.config.grpc_url, "tandem", guided("json_schema", schema, max_tokens=200, **bias))
    jsonschema.validate(json.loads(text_of(replies)), schema)
    last = [reply for reply in replies if reply.outputs][-1]
    assert last.outputs["num_output_tokens"].item() < 60
    pieces = []
    for stream in (True, False):
        cut = ask(triton.config.grpc_url, "tandem", guided("json_schema", PERSON, max_tokens=4, stream=stream))
        assert reasons_of(cut) == ["length"]
        pieces.append(text_of(cut))
    assert pieces[0] == pieces[1]
    assert pieces[0].startswith('{"name": ')


def test_guided_when_mixed_with_free_ones_then_each_keeps_its_own(triton: RunningTriton):
    """BC-17."""
    url = triton.config.grpc_url
    free = [
        tensors(messages=json.dumps([{"role": "user", "content": text}]), max_tokens=16) for text in ("Name a colour.", "Hello!")
    ]
    alone = [text_of(ask(url, "tandem", each)) for each in free]
    jobs = [("cat", guided("regex", CAT_OR_DOG))] * 4
    jobs += [("person", guided("json_schema", PERSON, max_tokens=80))] * 2
    jobs += [(f"free{number}", each) for number, each in enumerate(free)]
    rng = random.Random(7)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            rng.shuffle(jobs)
            for (kind, _), answer in zip(jobs, pool.map(lambda job: text_of(ask(url, "tandem", job[1])), jobs), strict=True):
                if kind == "cat":
                    assert answer in ("cat", "dog")
                elif kind == "person":
                    jsonschema.validate(json.loads(answer), PERSON)
                else:
                    assert answer == alone[int(kind[-1])]
    assert_idle(triton.config)


def test_guided_when_other_types_then_each_holds(triton: RunningTriton):
    url = triton.config.grpc_url
    assert text_of(ask(url, "tandem", guided("choice", ["red", "green", 'b"l(ue)*']))) in ("red", "green", 'b"l(ue)*')
    assert re.fullmatch("ba*", text_of(ask(url, "tandem", guided("ebnf_grammar", 'root ::= root "a" | "b"', max_tokens=8))))
    replies = ask(url, "tandem", guided("json", "", max_tokens=60, content="Give me a JSON object with a name."))
    if reasons_of(replies) == ["stop"]:  # nothing bounds a value of any form, so it may also be cut
        json.loads(text_of(replies))
    tool = {
        "structures": [{"begin": "<tool_call>", "schema": PERSON, "end": "</tool_call>"}],
        "triggers": ["<tool_call>"],
        "at_least_one": True,
        "stop_after_first": True,
    }
    answer = text_of(ask(url, "tandem", guided("structural_tag", tool, max_tokens=400)))
    found = re.search(r"<tool_call>(.*)</tool_call>$", answer, re.DOTALL)
    if found is not None:  # a small model may talk until the limit; what it calls must hold
        jsonschema.validate(json.loads(found[1]), PERSON)
    else:
        assert "<tool_call>" not in answer or "</tool_call>" not in answer
