"""Ed25519 signatures: whoever trusts a curator's public key can check a release without the ledger.

What is signed is a statement: canonical JSON that names its purpose and version, so that a
signature for one purpose is never valid for another. Private keys are files of their owner
alone; they are never printed, compared, copied or pickled.
"""

from dpdask.signing.files import (
    KEY_VARIABLE,
    PASSPHRASE_VARIABLE,
    configured_key_path,
    create_key,
    load_signing_key,
    public_key_of,
    public_key_path,
    read_public_key,
    read_signing_key,
)
from dpdask.signing.heads import check_head, sign_head
from dpdask.signing.keys import PublicKey, SigningKey, check, fingerprint, sign
from dpdask.signing.statements import (
    Head,
    SignatureFacts,
    check_statement,
    head_statement,
    release_statement,
    sign_statement,
)

__all__ = [
    "KEY_VARIABLE",
    "PASSPHRASE_VARIABLE",
    "Head",
    "PublicKey",
    "SignatureFacts",
    "SigningKey",
    "check",
    "check_head",
    "check_statement",
    "configured_key_path",
    "create_key",
    "fingerprint",
    "head_statement",
    "load_signing_key",
    "public_key_of",
    "public_key_path",
    "read_public_key",
    "read_signing_key",
    "release_statement",
    "sign",
    "sign_head",
    "sign_statement",
]
