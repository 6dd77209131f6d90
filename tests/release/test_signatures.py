"""Signed releases: a reader with the curator's public key and nothing else finds what was changed,
and who signed.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdask.cli import main
from dpdask.errors import InvalidKey, VerificationFailed
from dpdask.ledger import LedgerHead
from dpdask.releases.read import read_card
from dpdask.releases.verify import verify_release
from dpdask.signing import (
    PublicKey,
    SignatureFacts,
    check_statement,
    create_key,
    fingerprint,
    head_statement,
    read_public_key,
)
from tests.support.forging import edit_card, edit_json, reseal
from tests.support.workspace import Workspace, people


@pytest.fixture
def curator(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a curator's key, which is configured."""
    folder = tmp_path_factory.mktemp("curator")
    monkeypatch.delenv("DPDASK_SIGNING_KEY_PASSPHRASE", raising=False)
    monkeypatch.setenv("DPDASK_SIGNING_KEY", str(folder / "curator.key"))
    create_key(folder / "curator.key")
    return folder


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPDASK_SIGNING_KEY", raising=False)


def released(space: Workspace, file: str = "out.zarr") -> str:
    space.source(people(64, 8), chunks=(16, 8))
    space.release(output={"url": str(space.folder / file)})
    return str(space.folder / file)


def verify(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify", *arguments])


def fails(url: str, trust: Path) -> str:
    """The one line with which a release fails to verify."""
    result = verify(url, "--trust", str(trust))
    assert result.exit_code == 4, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def edited(url: str, change: Any) -> None:
    edit_json(Path(url) / "zarr.json", lambda document: change(document["attributes"]))


def test_a_signed_release_is_verified_without_its_ledger(space: Workspace, curator: Path) -> None:
    url = released(space)
    for file in space.folder.glob("ledger.db*"):
        file.unlink()
    result = verify(url, "--trust", str(curator / "curator.key.pub"))
    assert result.exit_code == 0, result.output
    signed_by = read_card(url).signed_by
    assert f"signed by {signed_by}, the trusted key" in result.stdout
    report = json.loads(verify(url, "--trust", str(curator / "curator.key.pub"), "--json").stdout)
    assert (report["signed_by"], report["trusted"], report["ledger"]) == (signed_by, True, False)
    assert "--trust" in verify(url).stdout  # without a key to trust, anybody may have signed


def test_a_release_is_signed_over_the_ledgers_head(space: Workspace, curator: Path) -> None:
    url = released(space)
    head = read_card(url).ledger
    assert 2 <= head.sequence <= space.ledger.head("people").sequence
    edit_card(Path(url), lambda card: card["ledger"].update(sequence=head.sequence + 1))
    reseal(Path(url))
    assert "does not fit" in fails(url, curator / "curator.key.pub")


def test_an_unsigned_release_says_so_and_is_not_trusted(space: Workspace, nobody: None) -> None:
    url = released(space)
    result = verify(url)
    assert result.exit_code == 0
    assert "unsigned: " in result.stdout
    assert json.loads(verify(url, "--json").stdout)["signed_by"] is None
    public = create_key(space.folder / "ledger.db-curator.key")
    line = fails(url, space.folder / "ledger.db-curator.key.pub")
    assert "unsigned" in line
    assert fingerprint(public) in line


def test_another_curators_key_is_named_with_the_signers(space: Workspace, curator: Path) -> None:
    url = released(space)
    other = create_key(curator / "other.key")
    line = fails(url, curator / "other.key.pub")
    assert fingerprint(other) in line
    assert str(read_card(url).signed_by) in line


def test_a_release_rewritten_as_a_whole_verifies_alone_but_not_by_the_key(
    space: Workspace, curator: Path
) -> None:
    """Without a key and without the ledger, chunks and card that were changed together agree with
    each other.
    """
    url = released(space)
    first, *_, last = sorted(Path(url, "data").glob("c.*"))
    first.write_bytes(last.read_bytes())
    reseal(Path(url))
    assert "does not fit" in fails(url, curator / "curator.key.pub")
    edited(url, lambda attributes: attributes.pop("dp_signature"))
    edit_card(Path(url), lambda card: card.update(signed_by=None))
    reseal(Path(url))
    verify_release(url)
    assert "unsigned" in fails(url, curator / "curator.key.pub")


def test_a_forger_who_signs_anew_is_not_trusted(
    space: Workspace, curator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can sign a release of their own; its public key does not say whose it is."""
    create_key(curator / "forger.key")
    monkeypatch.setenv("DPDASK_SIGNING_KEY", str(curator / "forger.key"))
    url = released(space)
    verify_release(url)
    assert "not by the trusted" in fails(url, curator / "curator.key.pub")
    curators = PublicKey(Ed25519PrivateKey.generate().public_key().public_bytes_raw())

    def pretend(attributes: dict[str, Any]) -> None:
        attributes["dp_signature"].update(
            public_key=curators.base64, fingerprint=fingerprint(curators)
        )
        attributes["dp"]["signed_by"] = fingerprint(curators)

    edited(url, pretend)
    reseal(Path(url))
    with pytest.raises(VerificationFailed, match="does not fit"):
        verify_release(url, trust=curators)


def test_the_signature_of_another_release_does_not_fit(space: Workspace, curator: Path) -> None:
    url = released(space)
    other = released(space, "ledger.db-other.zarr")
    taken = json.loads((Path(other) / "zarr.json").read_text())["attributes"]["dp_signature"]
    edited(url, lambda attributes: attributes.update(dp_signature=taken))
    assert "does not fit" in fails(url, curator / "curator.key.pub")
    with pytest.raises(VerificationFailed, match="does not fit"):
        verify_release(url)  # a signature that is there must hold, whoever is trusted


@pytest.mark.parametrize(
    "change",
    [
        lambda attributes: attributes.update(dp_signature="yes"),
        lambda attributes: attributes["dp_signature"].pop("public_key"),
        lambda attributes: attributes["dp_signature"].update(fingerprint=1),
        lambda attributes: attributes["dp_signature"].update(signature="none"),
        lambda attributes: attributes["dp_signature"].update(algorithm="none"),
    ],
)
def test_a_damaged_signature_is_one_line(space: Workspace, curator: Path, change: Any) -> None:
    url = released(space)
    edited(url, change)
    fails(url, curator / "curator.key.pub")


def test_a_trust_that_is_not_a_public_key_is_a_mistake(space: Workspace, curator: Path) -> None:
    url = released(space)
    for trust in ("curator.key", "nowhere.pub"):
        result = verify(url, "--trust", str(curator / trust))
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


def test_show_says_who_signed(
    space: Workspace, curator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = released(space)
    shown = CliRunner().invoke(main, ["show", url]).stdout
    assert "signed by" in shown
    assert str(read_card(url).signed_by) in shown
    edit_card(Path(url), lambda card: card.update(signed_by=None))
    assert "unsigned" in CliRunner().invoke(main, ["show", url]).stdout


def test_a_key_that_cannot_be_used_is_refused_before_the_charge(
    space: Workspace, curator: Path
) -> None:
    (curator / "curator.key").chmod(0o644)
    with pytest.raises(InvalidKey, match="chmod 600"):
        released(space)
    assert space.spent() == 0
    assert space.left_behind() == []


def test_the_private_key_is_nowhere_but_in_its_file(space: Workspace, curator: Path) -> None:
    private: Any = serialization.load_pem_private_key((curator / "curator.key").read_bytes(), None)
    secret = private.private_bytes_raw()
    released(space)
    forms = (secret, secret.hex().encode(), base64.b64encode(secret))
    for path in space.folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(form in content for form in forms), path


def test_a_signed_head_can_be_anchored_elsewhere(space: Workspace, curator: Path) -> None:
    released(space)
    result = CliRunner().invoke(
        main, ["ledger", "head", "people", "--sign", "--ledger", space.ledger_url]
    )
    assert result.exit_code == 0, result.output
    [head] = json.loads(result.stdout)["heads"]
    signature = SignatureFacts.from_dict(head["signature"])
    statement = head_statement(head["dataset"], head["sequence"], head["hash"], head["at"])
    check_statement(signature, statement, read_public_key(curator / "curator.key.pub"))
    assert space.ledger.contains(
        "people", LedgerHead(head["dataset"], head["sequence"], head["hash"])
    )
    with pytest.raises(VerificationFailed, match="does not fit"):
        check_statement(
            signature,
            head_statement(head["dataset"], head["sequence"] + 1, head["hash"], head["at"]),
        )


def test_a_head_is_not_signed_without_a_key(space: Workspace, nobody: None) -> None:
    result = CliRunner().invoke(main, ["ledger", "head", "--sign", "--ledger", space.ledger_url])
    assert result.exit_code == 2
    assert "dpdask key create" in result.stderr
