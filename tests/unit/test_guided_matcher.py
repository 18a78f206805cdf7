"""The mask of small vocabularies, exactly; rollback, copies, completion."""

from __future__ import annotations

import pytest

from tandem.errors import InvalidRequest
from tandem.guided.matcher import TokenMask
from tandem.types import Guide, GuideType
from tests.guided_factories import END, TOKENS, make_compiler, regex_guide, schema_guide, tokenize

COMPILER = make_compiler()


def allowed(matcher, end_id=END) -> set[str]:
    mask = TokenMask(len(TOKENS) + 1)
    matcher.fill(mask, end_id)
    ids = [token for token in range(len(TOKENS) + 1) if mask.allows(token)]
    assert ids == [token for token, is_out in enumerate(mask.to_forbidden()) if not is_out]
    assert mask.has_one == (len(ids) == 1)
    assert end_id is None or ids, "a mask is never empty"
    return {"END" if token == END else TOKENS[token] for token in ids}


def test_mask_when_followed_through_then_exact_and_end_only_where_accepting() -> None:
    matcher = COMPILER.compile(regex_guide("(cat|car)s?")).matcher()
    assert allowed(matcher) == {"c", "cat"}
    matcher.consume(tokenize("c")[0])
    assert allowed(matcher) == {"a"}
    matcher.consume(tokenize("a")[0])
    assert allowed(matcher) == {"t", "r"}
    assert not matcher.is_accepting
    matcher.consume(tokenize("r")[0])
    assert matcher.is_accepting
    assert not matcher.is_complete
    assert allowed(matcher) == {"s", "END"}
    assert allowed(matcher, end_id=None) == {"s"}
    matcher.consume(tokenize("s")[0])
    assert matcher.is_complete
    assert allowed(matcher) == {"END"}


def test_mask_when_end_token_is_a_text_token_then_only_where_accepting() -> None:
    matcher = COMPILER.compile(regex_guide("ab*")).matcher()
    b = tokenize("b")[0]
    assert allowed(matcher, end_id=b) == {"a"}
    matcher.consume(tokenize("a")[0])
    assert allowed(matcher, end_id=b) == {"b"}


def test_matcher_when_rolled_back_or_copied_then_states_are_apart() -> None:
    matcher = COMPILER.compile(regex_guide("(cat|dog), (yes|no)")).matcher()
    start = allowed(matcher)
    twin = matcher.copy()
    for token in tokenize("cat, "):
        matcher.consume(token)
    assert allowed(twin) == start
    middle = allowed(matcher)
    for token in tokenize("yes"):
        matcher.consume(token)
    assert matcher.is_complete
    matcher.rollback(len(tokenize("yes")))
    assert allowed(matcher) == middle
    matcher.rollback(len(tokenize("cat, ")))
    assert allowed(matcher) == start
    assert matcher.count_accepted(tokenize("dog, yes")) == len(tokenize("dog, yes"))
    assert matcher.count_accepted([*tokenize("dog, "), *tokenize("dog")]) == len(tokenize("dog, "))
    assert allowed(matcher) == start


def test_forced_tokens_when_text_is_fixed_then_canonical_split() -> None:
    matcher = COMPILER.compile(
        schema_guide({"type": "object", "properties": {"age": {"enum": [1, 2]}}, "required": ["age"]})
    ).matcher()
    assert matcher.forced_tokens() == tokenize('{"age": ')
    for token in matcher.forced_tokens():
        matcher.consume(token)
    assert matcher.forced_tokens() == []


@pytest.mark.parametrize(
    ("grammar", "texts", "others"),
    [
        ('root ::= root "a" | "b"', ["b", "ba", "baaa"], ["a", "ab", ""]),
        ('root ::= "cat" | "dog" "s"?', ["cat", "dog", "dogs"], ["cats", "do"]),
        ('root ::= "(" root ")" | "a"', ["a"], []),
        ('root ::= item (", " item){1,2}\nitem ::= [a-c]+ # letters\n', ["a, b", "abc, a, c"], ["a", "a, b, c, a", "d, a"]),
        ('root ::= "a" . [^b-z]', ["aza", "a{0"], ["ab", "azb"]),
    ],
)
def test_ebnf_when_compiled_then_takes_its_texts_only(grammar: str, texts: list[str], others: list[str]) -> None:
    grammar_of = COMPILER.compile(Guide(GuideType.EBNF_GRAMMAR, grammar))
    for text in texts:
        matcher = grammar_of.matcher()
        assert matcher.count_accepted(tokenize(text)) == len(tokenize(text)), text
        for token in tokenize(text):
            matcher.consume(token)
        assert matcher.is_accepting, text
    for text in others:
        matcher = grammar_of.matcher()
        count = matcher.count_accepted(tokenize(text))
        for token in tokenize(text)[:count]:
            matcher.consume(token)
        assert count < len(tokenize(text)) or not matcher.is_accepting, text


def test_compiler_when_asked_twice_then_compiles_once_and_stays_in_its_budget() -> None:
    compiler = make_compiler(max_cache_bytes=1_000_000)
    first = compiler.compile(regex_guide("a"))
    assert compiler.compile(regex_guide("a")) is first
    assert compiler.num_compiled == 1
    for number in range(30):
        compiler.compile(regex_guide(f"a{{{number + 1}}}"))
        assert compiler.num_cached_bytes <= 1_000_000
    assert compiler.cached(regex_guide("a")) is None
    with pytest.raises(InvalidRequest):
        compiler.compile(regex_guide("(a"))
    compiler.close()


def test_compiler_when_equal_guides_arrive_together_then_one_compile_answers_all() -> None:
    compiler = make_compiler()
    outcomes: list[object] = []
    for _ in range(20):
        compiler.submit(regex_guide("[a-z]{1,9}"), outcomes.append)
    compiler.close()
    assert len(outcomes) == 20
    assert len(set(map(id, outcomes))) == 1
    assert compiler.num_compiled == 1
