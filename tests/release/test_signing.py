"""Signatures: keys are files of their owner alone, statements serve one purpose, and nothing secret
is ever shown.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdask.cli import main
from dpdask.errors import InvalidKey, VerificationFailed
from dpdask.signing import (
    PublicKey,
    SignatureFacts,
    SigningKey,
    check,
    check_head,
    check_statement,
    create_key,
    fingerprint,
    head_statement,
    load_signing_key,
    public_key_of,
    read_public_key,
    read_signing_key,
    release_statement,
    sign,
    sign_head,
    sign_statement,
)

CARD, ROOT, LINK = "a1" * 32, "b2" * 32, "c3" * 32


@dataclass(frozen=True)
class At:
    dataset: str = "people"
    sequence: int = 7
    hash: str = LINK


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder of the test's own, and no key of the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DPDASK_SIGNING_KEY", raising=False)
    monkeypatch.delenv("DPDASK_SIGNING_KEY_PASSPHRASE", raising=False)
    return tmp_path / "config" / "dpdask"


def known_key(first: int = 0) -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(first, first + 32))))


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["key", *arguments])


# Key files


def test_a_key_is_created_for_its_owner_alone_with_its_public_key_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "curator.key"
    old = os.umask(0)
    try:
        public = create_key(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    beside = tmp_path / "keys" / "curator.key.pub"
    assert beside.read_bytes().startswith(b"-----BEGIN PUBLIC KEY-----")
    assert read_public_key(beside) == public == read_signing_key(path).public == public_key_of(path)
    assert sorted(p.name for p in path.parent.iterdir()) == ["curator.key", "curator.key.pub"]


def test_two_keys_are_never_the_same(tmp_path: Path) -> None:
    assert len({create_key(tmp_path / str(n)).raw for n in range(20)}) == 20


@pytest.mark.parametrize("existing", ["curator.key", "curator.key.pub"])
def test_a_key_is_never_created_over_an_existing_file(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("older")
    with pytest.raises(InvalidKey, match="exists"):
        create_key(tmp_path / "curator.key")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir() if p.is_file()] == [
        (existing, "older")
    ]


def test_of_many_who_create_the_same_key_at_once_one_does(tmp_path: Path) -> None:
    code = (
        "import sys; from dpdask.signing import create_key; print(create_key(sys.argv[1]).base64)"
    )
    path = tmp_path / "curator.key"
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = [process.communicate()[0].strip() for process in racing]
    winners = [text for text in said if text]
    assert winners == [read_signing_key(path).public.base64]
    assert read_public_key(tmp_path / "curator.key.pub") == read_signing_key(path).public
    assert not list(tmp_path.glob(".*.part"))


def test_without_a_configured_key_there_is_none() -> None:
    assert load_signing_key() is None


def test_the_configured_key_is_that_of_the_variable_else_that_of_the_default_path(
    configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standard, other = create_key(), create_key(tmp_path / "other.key")
    assert (configuration / "signing.key").exists()
    key = load_signing_key()
    assert key is not None
    assert key.public == standard
    monkeypatch.setenv("DPDASK_SIGNING_KEY", str(tmp_path / "other.key"))
    key = load_signing_key()
    assert key is not None
    assert key.public == other


def test_a_configured_key_that_is_not_there_is_an_error_not_an_unsigned_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPDASK_SIGNING_KEY", str(tmp_path / "nowhere.key"))
    with pytest.raises(InvalidKey, match=r"nowhere\.key' cannot be read: No such file"):
        load_signing_key()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o610])
def test_a_private_key_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    create_key(tmp_path / "curator.key")
    (tmp_path / "curator.key").chmod(mode)
    with pytest.raises(InvalidKey, match=f"mode {mode:04o}.*chmod 600"):
        read_signing_key(tmp_path / "curator.key")
    (tmp_path / "curator.key").chmod(0o400)
    read_signing_key(tmp_path / "curator.key")


def private_pem(key: Any) -> bytes:
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem


def test_other_kinds_of_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.key"
    other = rsa.generate_private_key(65537, 2048)
    for content in (
        private_pem(other),
        b"",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        b"\0" * 100,
    ):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(InvalidKey, match="not a valid signing key"):
            read_signing_key(path)
    path.write_bytes(
        other.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    with pytest.raises(InvalidKey, match="not a valid Ed25519 public key"):
        read_public_key(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidKey, match=r"cannot be read|not a regular file"):
        read_signing_key(path)


def test_a_private_key_handed_out_by_mistake_is_not_taken_for_a_public_one(tmp_path: Path) -> None:
    create_key(tmp_path / "curator.key")
    with pytest.raises(InvalidKey, match="is a private key"):
        read_public_key(tmp_path / "curator.key")


def test_a_passphrase_encrypts_the_key_and_is_needed_to_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPDASK_SIGNING_KEY_PASSPHRASE", "correct horse")
    path = tmp_path / "curator.key"
    public = create_key(path)
    assert b"ENCRYPTED" in path.read_bytes()
    assert read_signing_key(path).public == public
    monkeypatch.setenv("DPDASK_SIGNING_KEY_PASSPHRASE", "battery staple")
    with pytest.raises(InvalidKey, match="cannot be decrypted") as refused:
        read_signing_key(path)
    assert "battery" not in str(refused.value)
    monkeypatch.delenv("DPDASK_SIGNING_KEY_PASSPHRASE")
    with pytest.raises(InvalidKey, match="is encrypted; set DPDASK_SIGNING_KEY_PASSPHRASE"):
        read_signing_key(path)
    assert public_key_of(path) == public  # to hand it out needs no passphrase
    create_key(tmp_path / "plain.key")
    monkeypatch.setenv("DPDASK_SIGNING_KEY_PASSPHRASE", "correct horse")
    with pytest.raises(InvalidKey, match="is not encrypted"):
        read_signing_key(tmp_path / "plain.key")


def test_a_public_key_that_does_not_belong_to_the_private_one_is_found(tmp_path: Path) -> None:
    create_key(tmp_path / "a.key")
    create_key(tmp_path / "b.key")
    (tmp_path / "a.key.pub").write_bytes((tmp_path / "b.key.pub").read_bytes())
    with pytest.raises(InvalidKey, match="is not the public key of"):
        public_key_of(tmp_path / "a.key")


# Nothing secret is shown


def test_a_signing_key_shows_nothing_and_stays_in_its_process(tmp_path: Path) -> None:
    key = known_key()
    for text in (repr(key), str(key), f"{key}", f"{key:>30}", repr([key])):
        assert "redacted" in text
        assert bytes(range(32)).hex() not in text
    for send in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled or copied"):
            send(key)
    with pytest.raises(TypeError, match="not compared"):
        _ = key == known_key()
    with pytest.raises(TypeError):
        hash(key)


# Signatures


def test_a_vector_of_rfc_8032_is_reproduced() -> None:
    """RFC 8032, section 7.1, test 2: one byte, 0x72."""
    secret = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    expected = (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(secret))
    assert (
        key.public.raw.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    )
    assert base64.b64decode(sign(key, b"\x72")).hex() == expected
    check(key.public, b"\x72", sign(key, b"\x72"))


def test_a_signature_fits_one_key_and_one_message() -> None:
    key, other = known_key(), known_key(1)
    signature = sign(key, b"message")
    assert signature == sign(
        key, b"message"
    )  # a release that is resumed is signed by the same bytes
    check(key.public, b"message", signature)
    for public, message in (
        (other.public, b"message"),
        (key.public, b"massage"),
        (key.public, b""),
    ):
        with pytest.raises(VerificationFailed, match="does not fit"):
            check(public, message, signature)


@pytest.mark.parametrize("broken", ["", "AAAA", "!" * 88, "A" * 86 + "==", "A" * 87 + "="])
def test_what_is_not_a_signature_fails(broken: str) -> None:
    with pytest.raises(VerificationFailed):
        check(known_key().public, b"message", broken)


def test_every_flipped_bit_of_a_signature_fails() -> None:
    key = known_key()
    signature = base64.b64decode(sign(key, b"message"))
    for bit in range(512):
        changed = bytearray(signature)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(VerificationFailed):
            check(key.public, b"message", base64.b64encode(changed).decode())


def test_the_fingerprint_is_half_of_the_sha256_of_the_key() -> None:
    assert fingerprint(PublicKey(bytes(32))) == "ed25519:66687aadf862bd776c8fc18b8e9f8e20"
    with pytest.raises(InvalidKey, match="33 bytes"):
        PublicKey(bytes(33))


# Statements


def test_the_statement_of_a_release_is_canonical_json() -> None:
    expected = (
        f'{{"card":"{CARD}","ledger":{{"dataset":"people","hash":"{LINK}","sequence":7}},'
        f'"manifest":"{ROOT}","version":1,"what":"dpdask release"}}'
    )
    assert release_statement(CARD, ROOT, At()) == expected.encode()


def test_every_part_of_a_statement_is_signed() -> None:
    changed = [
        release_statement(CARD, ROOT, At()),
        release_statement(ROOT, CARD, At()),
        release_statement(CARD, CARD, At()),
        release_statement(CARD, ROOT, At(sequence=8)),
        release_statement(CARD, ROOT, At(dataset="pe\u00f6ple")),
        release_statement(CARD, ROOT, At(dataset='people","hash":"')),
        release_statement(CARD, ROOT, At(hash=ROOT)),
        head_statement("people", 7, LINK, "2026-01-01T00:00:00+00:00"),
        head_statement("people", 7, LINK, "2026-01-02T00:00:00+00:00"),
    ]
    assert len(set(changed)) == len(changed)
    key = known_key()
    signature = sign_statement(key, changed[0])
    check_statement(signature, changed[0], key.public)
    for statement in changed[1:]:
        with pytest.raises(VerificationFailed):
            check_statement(signature, statement, key.public)


def test_a_signed_head_is_not_a_signed_release() -> None:
    """A signature of one purpose must not serve another: the statements never agree."""
    head = json.loads(head_statement("people", 7, LINK, "2026-01-01T00:00:00+00:00"))
    release = json.loads(release_statement(CARD, ROOT, At()))
    assert head["what"] != release["what"]
    assert head == {
        "what": "dpdask ledger head",
        "version": 1,
        "ledger": {"dataset": "people", "sequence": 7, "hash": LINK},
        "at": "2026-01-01T00:00:00+00:00",
    }


def test_a_signed_head_survives_json_and_finds_every_change() -> None:
    key = known_key()
    document = json.loads(json.dumps(sign_head(key, At(), at="2026-01-01T00:00:00+00:00")))
    assert check_head(document, key.public).fingerprint == fingerprint(key.public)
    changes: list[dict[str, Any]] = [
        {"dataset": "others"},
        {"sequence": 6},
        {"sequence": True},
        {"hash": ROOT},
        {"hash": 5},
        {"at": "2025-01-01T00:00:00+00:00"},
        {"signature": {}},
        {"more": 1},
    ]
    for change in changes:
        with pytest.raises(VerificationFailed):
            check_head({**document, **change}, key.public)
    with pytest.raises(VerificationFailed, match="not by the trusted"):
        check_head(document, known_key(1).public)
    with pytest.raises(VerificationFailed):
        check_head([], key.public)


@pytest.mark.parametrize(
    "arguments",
    [
        (CARD[:-1], ROOT, At()),
        (CARD, ROOT.upper(), At()),
        (CARD, ROOT, At(hash="")),
        (CARD, ROOT, At(sequence=0)),
    ],
)
def test_a_statement_of_what_is_not_a_digest_is_refused(arguments: Any) -> None:
    with pytest.raises(VerificationFailed):
        release_statement(*arguments)


def test_another_key_than_the_trusted_one_is_named_with_it() -> None:
    key, trusted = known_key(), known_key(1)
    statement = release_statement(CARD, ROOT, At())
    signature = sign_statement(key, statement)
    check_statement(signature, statement)
    with pytest.raises(VerificationFailed) as refused:
        check_statement(signature, statement, trusted.public)
    assert fingerprint(key.public) in str(refused.value)
    assert fingerprint(trusted.public) in str(refused.value)


def test_a_signature_survives_json() -> None:
    signature = sign_statement(known_key(), b"statement")
    assert SignatureFacts.from_dict(json.loads(json.dumps(signature.to_dict()))) == signature
    assert signature.signer == known_key().public


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": "rsa"},
        {"public_key": "AAAA"},
        {"public_key": 5},
        {"fingerprint": "ed25519:" + "0" * 32},
        {"signature": "AAAA"},
        {"signature": None},
        {"extra": "field"},
    ],
)
def test_a_signature_that_is_not_one_fails_in_one_line(change: dict[str, Any]) -> None:
    good = sign_statement(known_key(), b"statement").to_dict()
    with pytest.raises(VerificationFailed) as refused:
        SignatureFacts.from_dict({**good, **change})
    assert "\n" not in str(refused.value)
    for wrong in (None, [], "text", {}):
        with pytest.raises(VerificationFailed):
            SignatureFacts.from_dict(wrong)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("tampered", [False, True])
def test_openssl_checks_a_signature_by_the_public_key_file(tmp_path: Path, tampered: bool) -> None:
    """A reader does not need dpdask: the statement, the signature and the .pub file are enough for
    OpenSSL.
    """
    create_key(tmp_path / "curator.key")
    statement = release_statement(CARD, ROOT, At())
    signature = sign(read_signing_key(tmp_path / "curator.key"), statement)
    (tmp_path / "signature").write_bytes(base64.b64decode(signature))
    (tmp_path / "statement").write_bytes(statement + b" " * tampered)
    files = ["-inkey", "curator.key.pub", "-in", "statement", "-sigfile", "signature"]
    checked = subprocess.run(
        ["openssl", "pkeyutl", "-verify", "-pubin", "-rawin", *files],
        cwd=tmp_path,
        capture_output=True,
    )
    assert (checked.returncode == 0) is not tampered


# Commands


def test_key_create_and_show(configuration: Path) -> None:
    created = command("create")
    assert created.exit_code == 0, created.output
    public = read_public_key(configuration / "signing.key.pub")
    assert fingerprint(public) in created.stdout
    assert str(configuration / "signing.key.pub") in created.stdout
    shown = json.loads(command("show", "--json").stdout)
    assert shown == {
        "fingerprint": fingerprint(public),
        "public_key": public.base64,
        "path": str(configuration / "signing.key.pub"),
    }
    assert fingerprint(public) in command("show").stdout
    assert (
        fingerprint(public)
        in command("show", "--path", str(configuration / "signing.key.pub")).stdout
    )
    secret = (configuration / "signing.key").read_text().splitlines()[1]
    for text in (created.output, command("show").output):
        assert secret not in text


def test_mistakes_with_keys_are_one_line(configuration: Path, tmp_path: Path) -> None:
    command("create")
    before = (configuration / "signing.key").read_bytes()
    (tmp_path / "file").write_text("")
    for arguments in (
        ("create",),
        ("create", "--path", str(tmp_path / "file" / "inside.key")),
        ("show", "--path", str(tmp_path / "nowhere.key")),
        ("show", "--path", str(tmp_path / "file")),
    ):
        result = command(*arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
    assert (configuration / "signing.key").read_bytes() == before
