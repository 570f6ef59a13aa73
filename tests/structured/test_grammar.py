"""Constraints as grammars, and what is said of those that cannot be followed."""

import json

import pytest
from engine.real_engine import tiny_grammars
from hypothesis import given, settings, strategies as st
from tiny_models import tiny_tokenizer

from batchpaged.config import StructuredConfig
from batchpaged.engine.grammar import Grammar
from batchpaged.errors import ConfigError
from batchpaged.structured.grammar import UnfollowableSchema, grammar_of, schema_grammar

REFUSED = [
    ({"json_schema": {"type": "array", "uniqueItems": True}}, "json_schema: llguidance does not support all of it: at its top: uniqueItems"),
    ({"json_schema": {"not": {}, "if": {}}}, "at its top: if, not. Leave them out, or say it otherwise: for not an enum"),
    ({"json_schema": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}}, "for oneOf anyOf"),
    ({"json_schema": {"items": [{"patternProperties": {"a": {}}}]}}, "at /items/0: patternProperties"),
    ({"json_schema": {"type": "wat"}}, "json_schema: at its top: cannot be followed: Invalid type: wat"),
    ({"json_schema": {"items": {"pattern": "(?=a)b", "type": "string"}}}, "at /items: cannot be followed: look-around, including"),
    ({"json_schema": {"$ref": "https://example.org/s.json"}}, "cannot be followed"),
    ({"json_schema": {"items": {"$ref": "https://example.org/s.json"}}}, "at /items: cannot be followed"),
    ({"json_schema": {"$defs": {"a": {"type": "string"}}, "oneOf": [{"$ref": "#/$defs/a"}, {"maxLength": 3}]}}, "at its top: oneOf."),
    ({"json_schema": {"$ref": "#/$defs/a"}}, "Pointer '/$defs/a' does not exist"),
    ({"json_schema": {"type": "string", "minLength": 3, "maxLength": 2}}, "minLength"),
    ({"regex": "[a-z"}, "regex: cannot be followed: unclosed character class, at character 1: [a-z"),
    ({"json_schema": {"$ref": "#"}}, "json_schema: nothing can fit it"),
    ({"regex": "[a&&b]"}, "regex: nothing can fit it: it contradicts itself, or has no end"),
    ({"regex": "a{100000000}"}, "regex: is too large (lexer error: too many expressions"),
    ({"regex": "(a)\\1"}, "backreferences are not supported, at character 4: \\1"),
]


@pytest.mark.parametrize(("constraint", "reason"), REFUSED)
def test_what_cannot_be_followed_is_said_on_one_line_with_its_key(constraint, reason):
    with pytest.raises(ConfigError) as refused:
        grammar_of(StructuredConfig(**constraint))
    message = str(refused.value)
    assert message.startswith("sampling.structured.") and reason in message and "\n" not in message


@pytest.mark.parametrize("regex", ["()", "a", "é{2}", "(ab|c)*", "(ab|cd){1,20000}x"])
def test_what_can_be_followed_is_never_refused(regex):
    assert grammar_of(StructuredConfig(regex=regex))


def test_the_file_of_a_wrong_schema_is_named(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text('{"uniqueItems": true}')
    with pytest.raises(ConfigError, match=f"^sampling.structured.json_schema, {path}: llguidance does not support"):
        grammar_of(StructuredConfig(json_schema=str(path)))


def test_all_faults_of_a_schema_are_told_at_once_with_their_places():
    parts = {"a/b": {"not": {}}, "c": {"$ref": "#/$defs/d"}, "e": {"format": "wat", "type": "string"}}
    schema = {"properties": parts, "$defs": {"d": {"uniqueItems": True, "contains": {}}}}
    with pytest.raises(ConfigError) as refused:
        grammar_of(StructuredConfig(json_schema=schema))
    for words in ("at /properties/a~1b: not;", "at /$defs/d: contains, uniqueItems.", "at /properties/e: cannot be followed: Unknown format: wat"):
        assert words in str(refused.value)
    with pytest.raises(UnfollowableSchema, match="^needs contains, not, uniqueItems, which llguidance does not support$"):
        schema_grammar(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "places"),
    [
        ({"properties": {"a": {"uniqueItems": True}}, "required": ["a"], "additionalProperties": False}, "at /properties/a: uniqueItems"),
        ({"properties": {"a": {"const": {"not": 1}}, "b": {"contains": {}}}}, "at /properties/b: contains"),
        ({"properties": {"a": {"enum": [{"not": 1}]}, "b": {"contains": {}}}}, "at /properties/b: contains"),
        ({"anyOf": [{"type": "null"}, {"contains": {}}], "default": {"not": {}}}, "at /anyOf/1: contains"),
    ],
)
def test_a_fault_is_told_at_its_own_place_alone(schema, places):
    with pytest.raises(ConfigError) as refused:
        grammar_of(StructuredConfig(json_schema=schema))
    assert f"does not support all of it: {places}. Leave them out" in str(refused.value)


def test_what_the_schema_says_to_overlook_is_no_fault():
    schema = {"x-guidance": {"lenient": True}, "uniqueItems": True, "items": {"type": "wat", "contains": {}}}
    with pytest.raises(ConfigError, match="json_schema: at /items: cannot be followed: Invalid type: wat$"):
        grammar_of(StructuredConfig(json_schema=schema))


def test_a_property_may_have_the_name_of_any_keyword():
    properties = {"patternProperties": {"type": "boolean"}, "not": {"enum": ["patternProperties"]}}
    assert schema_grammar(json.dumps({"type": "object", "properties": properties}))


def test_a_schema_too_deep_to_be_read_is_refused_in_our_words():
    with pytest.raises(UnfollowableSchema, match="^is nested too deeply$"):
        schema_grammar('{"items": ' * 10**5 + "{}" + "}" * 10**5)


def test_no_constraint_and_a_column_of_them_are_no_grammar_of_the_run():
    assert grammar_of(None) is None
    assert grammar_of(StructuredConfig(column="schema")) is None


def texts_of(grammar: str, max_tokens: int = 12) -> set[str]:
    """All texts of a small language, by trying every allowed token."""
    tokenizer, found, open_states = tiny_tokenizer(), set(), [(tiny_grammars().start(grammar), ())]
    while open_states:
        state, ids = open_states.pop()
        for token in range(3, 259):
            other = Grammar(state.matcher.deep_copy(), state.grammars)
            other.accept(token)
            if other.error is None and len(ids) < max_tokens:
                open_states.append((other, (*ids, token)))
                if other.matcher.is_accepting():
                    found.add(tokenizer.decode((*ids, token)))
    return found


@settings(max_examples=6, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab \"'/\\.*|\n\té"), min_size=1, max_size=3), min_size=1, max_size=3))
def test_choices_are_taken_letter_by_letter(choices):
    """Quotes, slashes, line ends, what means something in regular expressions; one may begin another."""
    assert texts_of(grammar_of(StructuredConfig(choices=tuple(choices)))) == set(choices)


def test_json_is_written_as_python_writes_it():
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"enum": [True, "x"]}}, "required": ["a", "b"]}
    texts = texts_of(schema_grammar(json.dumps({**schema, "additionalProperties": False})), max_tokens=20)
    assert texts == {json.dumps({"a": 1, "b": b}) for b in (True, "x")}
