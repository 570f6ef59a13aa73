import pyarrow as pa
import pytest

from batchpaged.dataset.prompts import PromptBuilder, validate_prompt_columns
from batchpaged.errors import ConfigError, InputError

SYSTEM = "You answer questions from the given context only."
USER = 'Context:\n{{ contexts | join("\\n\\n") }}\n\nQuestion: {{ question }}\n'


def test_messages_need_a_chat_template(prompt_config, tokenizer, make_tokenizer):
    for config, chosen in (
        (prompt_config(messages_column="m"), make_tokenizer(chat_template=None)),
        (prompt_config(messages_column="m", chat_template="none"), tokenizer),
    ):
        with pytest.raises(ConfigError, match="needs a chat template"):
            PromptBuilder(config, chosen, 100, 1)


def test_a_chat_template_that_refuses_every_row(prompt_config, make_tokenizer):
    tokenizer = make_tokenizer(
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    )
    with pytest.raises(ConfigError, match="No system role"):
        PromptBuilder(prompt_config(system="s", user="u"), tokenizer, 100, 1)


def test_no_room_for_any_prompt(prompt_config, tokenizer):
    with pytest.raises(ConfigError, match="max_tokens 32 leaves no room"):
        PromptBuilder(prompt_config(user="u"), tokenizer, 32, 32)


def test_no_prompt_at_all(prompt_config, tokenizer):
    with pytest.raises(ConfigError, match="give one of"):
        PromptBuilder(prompt_config(), tokenizer, 100, 1)


def test_a_table_without_the_columns(build):
    with pytest.raises(InputError, match="x"):
        build({"y": [1]}, user="{{ x }}")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.list_(pa.string()), "which is a list; write {{ x[0] }}"),
        (pa.struct([("name", pa.string())]), "which is a struct; write {{ x.name }}, or {{ x | tojson }}"),
        (pa.map_(pa.string(), pa.int64()), "which is a map; write {{ x | tojson }}"),
        (pa.large_binary(), "which is large_binary; decode it to a string"),
    ],
    ids=str,
)
def test_columns_that_cannot_be_printed_as_they_are(prompt_config, kind, message):
    with pytest.raises(InputError) as caught:
        validate_prompt_columns(prompt_config(user="{{ x }}"), pa.schema([("x", kind)]))
    assert str(caught.value).startswith(f"prompt.user prints 'x', {message}")
    validate_prompt_columns(prompt_config(user="{% if x %}a{% endif %}"), pa.schema([("x", kind)]))


def test_template_variables_are_checked_with_the_nearest_name(prompt_config):
    schema = pa.schema([("contexts", pa.list_(pa.string())), ("question", pa.string())])
    validate_prompt_columns(prompt_config(system=SYSTEM, user=USER), schema)
    config = prompt_config(system="{{ contxts }}", user="{{ question }}{{ zzz }}{% for i in range(2) %}{% endfor %}")
    with pytest.raises(InputError) as caught:
        validate_prompt_columns(config, schema)
    message = str(caught.value)
    assert "prompt.system uses 'contxts'" in message and "did you mean 'contexts'?" in message
    assert "prompt.user uses 'zzz'" in message and "the input has contexts, question" in message


MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        (
            "text_column",
            [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())],
            [pa.int64(), MESSAGES],
        ),
        (
            "messages_column",
            [MESSAGES, pa.string()],
            [pa.list_(pa.string()), pa.list_(pa.struct([("role", pa.string())]))],
        ),
        ("token_ids_column", [pa.list_(pa.int32()), pa.large_list(pa.uint16())], [pa.list_(pa.float32()), pa.int32()]),
    ],
)
def test_column_types_are_checked(prompt_config, key, good, bad):
    config = prompt_config(**{key: "column"})
    for kind in good:
        validate_prompt_columns(config, pa.schema([("column", kind)]))
    for kind in bad:
        with pytest.raises(InputError, match=f"prompt.{key}: column 'column' is .*must be"):
            validate_prompt_columns(config, pa.schema([("column", kind)]))
    with pytest.raises(InputError, match="did you mean 'colum'"):
        validate_prompt_columns(config, pa.schema([("colum", good[0])]))


def test_a_broken_template_is_a_config_error(prompt_config):
    with pytest.raises(ConfigError, match="prompt.user, line 1"):
        validate_prompt_columns(prompt_config(user="{{ x"), pa.schema([("x", pa.string())]))
