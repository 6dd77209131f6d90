"""What keeps secrets out of specs: URLs and options that could hold one are refused.

A storage option that is secret is written ``{env: NAME}`` and read from the environment by the
process that opens the storage; a ledger's password comes from its own environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field

from dpdask.spec.fields import Section

__all__ = ["ClusterOptions", "EnvironmentValue", "LedgerUrl", "StorageOptions", "Url"]

_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|token|credential|key|private|sas|connection_string|auth",
    re.IGNORECASE,
)
_SECRET_ASSIGNMENT = re.compile(rf"({_SECRET_NAME.pattern})\w*\s*[=:]", re.IGNORECASE)
_PROVIDER_PREFIX = re.compile(r"^(aws|google|azure)_(storage_)?", re.IGNORECASE)
# Storage options that may stand in a spec; all others come from the environment, since some of them
# are secrets.
_PUBLIC_OPTIONS = {
    "account_name", "allow_http", "bucket", "bucket_name", "checksum_algorithm", "conditional_put",
    "container_name", "copy_if_not_exists", "default_region", "disable_tagging", "endpoint",
    "endpoint_url", "imdsv1_fallback", "region", "request_payer", "s3_express", "skip_signature",
    "unsigned_payload", "use_azure_cli", "use_emulator", "use_fabric_endpoint",
    "virtual_hosted_style_request",
}  # fmt: skip
_LEDGER_URL = re.compile(
    r"[\w+]+://(?:[^:/]*(?::(?P<password>[^@]*))?@)?[^?]*(?:\?(?P<options>.*))?"
)


class EnvironmentValue(Section):
    """A value that is read from an environment variable where it is needed."""

    env: str


OptionValue = EnvironmentValue | bool | int | str


def _refuse_secret_in_url(url: str) -> str:
    if "://" not in url or url.startswith(("file:", "memory:")):
        return url
    if "@" in urlsplit(url).netloc or "?" in url:
        raise ValueError(
            "a URL with a user, a password or a query in it may hold a secret; give that by the"
            " environment"
        )
    return url


def _refuse_secret_options(options: dict[str, OptionValue]) -> dict[str, OptionValue]:
    for key, value in options.items():
        public = _PROVIDER_PREFIX.sub("", key.lower()) in _PUBLIC_OPTIONS
        if not public and not isinstance(value, EnvironmentValue):
            raise ValueError(
                f"option {key} may be a secret; write {key}: {{env: NAME}} and set the variable"
                " NAME"
            )
        if isinstance(value, str):
            _refuse_secret_in_url(value)
    return options


def _refuse_nested_secrets(options: object) -> None:
    for key, value in _items(options):
        assigned = isinstance(value, str) and _SECRET_ASSIGNMENT.search(value)
        named = isinstance(key, str) and _SECRET_NAME.search(key)
        if assigned or (named and not isinstance(value, dict | bool | None)):
            raise ValueError(
                f"option {key} looks like a secret; let the factory read it from its own"
                " environment"
            )
        _refuse_nested_secrets(value)


def _items(options: object) -> Iterable[tuple[object, object]]:
    if isinstance(options, dict):
        return options.items()
    if isinstance(options, list):
        return enumerate(options)
    return ()


def _refuse_secret_cluster_options(options: dict[str, object]) -> dict[str, object]:
    _refuse_nested_secrets(options)
    return options


def _refuse_ledger_password(url: str) -> str:
    parts = _LEDGER_URL.fullmatch(url)
    if parts is None:
        raise ValueError(
            "the ledger URL cannot be read; write sqlite:///path or postgresql://host/database"
        )
    names = [name for name, _ in parse_qsl(parts["options"] or "", keep_blank_values=True)]
    if parts["password"] is not None or any(_SECRET_NAME.search(name) for name in names):
        raise ValueError(
            "the ledger URL holds a password; drop it and set PGPASSWORD or DPDASK_LEDGER in the"
            " environment"
        )
    return url


Url = Annotated[str, AfterValidator(_refuse_secret_in_url)]
StorageOptions = Annotated[
    dict[str, OptionValue], AfterValidator(_refuse_secret_options), Field(default_factory=dict)
]
ClusterOptions = Annotated[dict[str, object], AfterValidator(_refuse_secret_cluster_options)]
LedgerUrl = Annotated[str, AfterValidator(_refuse_ledger_password)]
