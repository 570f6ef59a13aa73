"""llguidance's messages on one line."""

import pytest

from batchpaged.structured.library import plain, unsupported_keys


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Invalid type: wat", "cannot be followed: Invalid type: wat"),
        ("regex parse error:\n    ab(c\n      ^\nerror: unclosed group", "cannot be followed: unclosed group, at character 3: (c"),
        ("    ab\n    ^^\n", "cannot be followed: ab, at character 1: ab"),
        ("    ^\nerror: nothing above it", "cannot be followed: nothing above it"),
        ("x" * 300, "cannot be followed: " + "x" * 200),
        (f"    {'a' * 31}\n    ^\nerror: long", f"cannot be followed: long, at character 1: {'a' * 27}..."),
    ],
)
def test_a_message_is_its_first_reason_and_a_place(message: str, words: str) -> None:
    assert plain(message) == words


def test_only_unsupported_keywords_are_taken_from_a_message() -> None:
    assert unsupported_keys('Unimplemented keys: ["not", "if"]') == ["not", "if"]
    assert unsupported_keys("Invalid type: wat") == []
