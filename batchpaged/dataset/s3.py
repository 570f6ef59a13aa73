"""S3 and what speaks its protocol: a filesystem that retries, from a URL.

    s3://bucket/folder                      region, credentials and endpoint as the environment says
    s3://bucket/folder?endpoint_override=127.0.0.1:9000&scheme=http&region=eu-central-1

Credentials come by the standard chain: environment variables, configuration files, the machine's role. AWS_ENDPOINT_URL_S3
or AWS_ENDPOINT_URL name a store that is not Amazon's, AWS_MAX_ATTEMPTS how often a request is tried.
"""

from __future__ import annotations

import os
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow.fs as pafs

# Of one request, with waits that double in between: a store may be gone for most of a minute.
MAX_ATTEMPTS = 8
CONNECT_SECONDS = 10.0
_SIGN = "AWS Error "  # in every message that reports what a store answered, or that it did not


def open_s3(url: str) -> tuple[pafs.S3FileSystem, str]:
    """-> filesystem, and bucket/path. Raises what pyarrow does for a URL that it does not understand."""
    plain, path = pafs.FileSystem.from_uri(url)  # judges all options, and finds out the bucket's region
    parts = urlsplit(url)
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    endpoint = options.get("endpoint_override") or _endpoint_of_environment()
    scheme, _, host = endpoint.rpartition("://") if endpoint else ("", "", None)
    filesystem = pafs.S3FileSystem(
        access_key=unquote(parts.username) if parts.username else None,
        secret_key=unquote(parts.password) if parts.password else None,
        region=plain.region or None,
        endpoint_override=host,
        scheme=options.get("scheme") or scheme or None,
        connect_timeout=CONNECT_SECONDS,
        allow_delayed_open=True,  # a small file is then one request
        allow_bucket_creation=options.get("allow_bucket_creation", "").lower() in ("1", "true"),
        tls_ca_file_path=options.get("tls_ca_file_path"),
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_max_attempts()),
    )
    return filesystem, path


def is_store_failure(error: BaseException) -> bool:
    """Did the store fail, and not the file? Then trying again later may help."""
    return isinstance(error, OSError) and _SIGN in str(error)


def _endpoint_of_environment() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _max_attempts() -> int:
    text = os.environ.get("AWS_MAX_ATTEMPTS", "")
    return max(1, int(text)) if text.isdecimal() else MAX_ATTEMPTS
