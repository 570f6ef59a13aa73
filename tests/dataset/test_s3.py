"""s3:// URLs: who is asked, how often, and that no message shows a secret."""

import pytest

from batchpaged.dataset import s3
from batchpaged.dataset.locations import mask, mask_credentials, resolve

SECRET = "wJalr/XUtnFEMI"


@pytest.fixture
def made(monkeypatch):
    """What pyarrow's filesystem is made with."""
    calls = []

    class Filesystem:
        def __init__(self, **options):
            calls.append(options)

    monkeypatch.setattr(s3.pafs, "S3FileSystem", Filesystem)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_MAX_ATTEMPTS"):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_options_of_the_url_come_before_the_environment(made, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere:1")
    s3.open_s3("s3://bucket/a/b?endpoint_override=127.0.0.1:9000&scheme=http&region=eu-west-3")
    options = made[0]
    assert (options["endpoint_override"], options["scheme"], options["region"]) == ("127.0.0.1:9000", "http", "eu-west-3")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_environment_names_a_store(made, monkeypatch, variable):
    monkeypatch.setenv(variable, "http://127.0.0.1:9000")
    assert s3.open_s3("s3://bucket/a%20b?region=us-east-1")[1] == "bucket/a b"
    assert (made[0]["endpoint_override"], made[0]["scheme"]) == ("127.0.0.1:9000", "http")


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("0", 1), ("many", s3.MAX_ATTEMPTS), ("", s3.MAX_ATTEMPTS)])
def test_requests_are_tried_as_often_as_the_environment_says(made, monkeypatch, text, number):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", text)
    s3.open_s3("s3://bucket/a?region=us-east-1")
    assert made[0]["retry_strategy"].max_attempts == number


def test_credentials_are_left_to_the_standard_chain_unless_the_url_has_them(made):
    s3.open_s3("s3://bucket/a?region=us-east-1")
    s3.open_s3("s3://key:sec%2Fret@bucket/a?region=us-east-1")
    assert [(o["access_key"], o["secret_key"]) for o in made] == [(None, None), ("key", "sec/ret")]


def test_a_name_shows_neither_credentials_nor_options():
    assert resolve(f"s3://key:{SECRET.replace('/', '%2F')}@bucket/a?region=us-east-1").name == "s3://bucket/a"


@pytest.mark.parametrize(
    "text",
    [
        f"s3://key:{SECRET}@bucket/a: access denied",
        f"https://host/a?X-Amz-Signature={SECRET}&x=1",
        f"GET failed: secret_key={SECRET}, again",
        f"x-amz-security-token: {SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
    ],
)
def test_no_message_shows_a_secret(text):
    for masked in (mask(text), mask_credentials(text)):
        assert "wJalr" not in masked and "XUtn" not in masked and "***" in masked


@pytest.mark.parametrize(
    "text",
    [
        "batchpaged run a.yaml --run-dir s3://bucket/a?region=us-east-1 --limit 5",
        "batchpaged run a.yaml --set sampling.max_tokens=64 --set engine.max_batch_tokens=512 --set sampling.stop_token_ids=[3]",
        "batchpaged run a.yaml --set prompt.token_ids_column=ids",
    ],
)
def test_what_is_no_secret_stays(text):
    assert mask_credentials(text) == text


def test_words_about_tokens_stay():
    assert mask("s3://bucket/a: 404, a token ids column") == "s3://bucket/a: 404, a token ids column"
