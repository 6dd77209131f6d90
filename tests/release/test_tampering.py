"""`dpdask verify` on a published release that somebody changed: every change is one line of error.

The line gives the right reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

from dpdask.cli import main
from dpdask.privacy import PrivacyBudget
from dpdask.signing import create_key, read_signing_key, sign_statement
from dpdask.storage import MANIFEST_ARRAY, ROOT
from tests.support.forging import edit_card, edit_chunk, edit_json, reseal, scale_noise_std
from tests.support.workspace import Workspace

Tamper = Callable[[Path], None]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A signed release with coordinates and with a noise factor that is too large for the card."""
    space = Workspace(tmp_path_factory.mktemp("published"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPDASK_SIGNING_KEY", str(space.folder / "curator.key"))
        create_key(space.folder / "curator.key")
        patch.delenv("DPDASK_SIGNING_KEY_PASSPHRASE", raising=False)
        space.ledger.open_dataset("people", PrivacyBudget(epsilon=100.0, delta=1e-3))
        _back_up(space.folder / "ledger.db", space.folder / "before.db")
        group = zarr.open_group(space.folder / "source.zarr", mode="w")
        values = np.random.default_rng(3).standard_normal((48, 12))
        group.create_array(
            "x",
            data=values,
            chunks=(12, 12),
            dimension_names=("person", "day"),
            attributes={"units": "kWh"},
        )
        group.create_array(
            "day", data=np.arange(12), dimension_names=("day",), attributes={"units": "days"}
        )
        dense = np.eye(12) + 0.1 * np.ones((12, 12))
        space.release(
            mechanism={"name": "imgm", "factors": ["identity", {"dense": dense.tolist()}]},
            publish={"coordinates": ["day"], "attributes": ["units"]},
        )
        yield space


def _back_up(database: Path, copy: Path) -> None:
    with sqlite3.connect(database) as live, sqlite3.connect(copy) as kept:
        live.backup(kept)


def _flip(group: Path) -> None:
    path = group / "data/c.1.0"
    content = bytearray(path.read_bytes())
    content[7] ^= 64
    path.write_bytes(bytes(content))


def _swap(group: Path) -> None:
    one, other = group / "data/c.0.0", group / "data/c.1.0"
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _linked(group: Path) -> None:
    """The very bytes, but where somebody else can change them later."""
    (group / "data/c.2.0").rename(group.parent / "elsewhere")
    (group / "data/c.2.0").symlink_to(group.parent / "elsewhere")


def _attribute(name: str, value: Any) -> Tamper:
    return lambda group: edit_json(
        group / "data" / ROOT, lambda document: document["attributes"].update({name: value})
    )


def _new_array(group: Path) -> None:
    zarr.create_array(group, name="extra", data=np.arange(3.0))


def _promise(card: dict[str, Any]) -> None:
    card["guarantee"]["claimed"]["epsilon"] = 0.1


def _spelled_twice(group: Path) -> None:
    """Attributes that are there twice: readers differ in which they take."""
    text = (group / ROOT).read_text()
    (group / ROOT).write_text(
        text.replace(
            '{\n  "attributes"', '{\n  "attributes": {"dp:epsilon": 0.01},\n  "attributes"', 1
        )
    )


def _manifest_line(group: Path) -> None:
    path = group / MANIFEST_ARRAY / "c/0"
    text = path.read_text()
    path.write_text(("0" if text[0] != "0" else "1") + text[1:])


def _quieter(group: Path) -> None:
    """Noise of half the size on a card that otherwise agrees with itself."""
    [factor] = (group / "dp_release").glob("noise_*matrix/c/0/0")
    factor.write_bytes((np.frombuffer(factor.read_bytes(), np.float64) / 2).tobytes())
    edit_card(group, lambda card: scale_noise_std(card, 1 / 2))
    stds = ("dp:noise_std", "dp:noise_std_min", "dp:noise_std_max")
    edit_json(
        group / "data" / ROOT,
        lambda d: d["attributes"].update({name: d["attributes"][name] / 2 for name in stds}),
    )
    reseal(group)


def _forged(group: Path) -> None:
    """Other values, and everything that is computed without a key computed again."""
    edit_chunk(group / "data/c.0.0")
    reseal(group)


def _signed_anew(group: Path) -> None:
    """The same, signed by a key of the forger's own."""
    from dpdask.releases.read import read_card
    from dpdask.releases.verify import card_statement
    from dpdask.signing import fingerprint

    path = group.parent / "forger.key"
    create_key(path)
    key = read_signing_key(path)
    edit_chunk(group / "data/c.0.0")
    edit_card(group, lambda card: card.update(signed_by=fingerprint(key.public)))
    reseal(group)
    signature = sign_statement(key, card_statement(read_card(str(group)))).to_dict()
    edit_json(group / ROOT, lambda document: document["attributes"].update(dp_signature=signature))


def _unsigned(group: Path) -> None:
    edit_json(group / ROOT, lambda document: document["attributes"].pop("dp_signature"))


def _never_signed(group: Path) -> None:
    _unsigned(group)
    edit_card(group, lambda card: card.update(signed_by=None))
    reseal(group)


ALONE: tuple[str, ...] = ()
LEDGER = ("--ledger",)
TRUST = ("--trust",)

KINDS: list[tuple[str, Tamper, tuple[str, ...], str]] = [
    ("a bit of a chunk", _flip, ALONE, r"'data/c.1.0' was changed"),
    (
        "values of a chunk, with its checksum",
        lambda g: edit_chunk(g / "data/c.2.0"),
        ALONE,
        r"'data/c.2.0' was changed",
    ),
    (
        "a chunk cut short",
        lambda g: os.truncate(g / "data/c.3.0", 90),
        ALONE,
        r"'data/c.3.0' was changed",
    ),
    ("a chunk removed", lambda g: (g / "data/c.3.0").unlink(), ALONE, r"'data/c.3.0' is missing"),
    ("a link in place of a chunk", _linked, ALONE, r"'data/c.2.0' is a link or not a plain file"),
    (
        "a link to nothing",
        lambda g: (g / "data/c.8.0").symlink_to("/nonexistent"),
        ALONE,
        r"'data/c.8.0' is stored beside",
    ),
    ("two chunks swapped", _swap, ALONE, r"'data/c.0.0' was changed"),
    (
        "a chunk added",
        lambda g: shutil.copy(g / "data/c.0.0", g / "data/c.9.0"),
        ALONE,
        r"'data/c.9.0' is stored beside",
    ),
    ("an array added", _new_array, ALONE, r"'extra/.*' is stored beside"),
    ("the array's scale", _attribute("scale_factor", 2.0), ALONE, r"'data/zarr.json' was changed"),
    ("the array's epsilon", _attribute("dp:epsilon", 0.01), ALONE, r"'data/zarr.json' was changed"),
    (
        "the array's dimensions",
        lambda g: edit_json(
            g / "data" / ROOT, lambda d: d.update(dimension_names=["day", "person"])
        ),
        ALONE,
        r"'data/zarr.json' was changed",
    ),
    (
        "the card's epsilon",
        lambda g: edit_card(g, _promise),
        ALONE,
        r"'zarr.json' of the group, which holds the card",
    ),
    (
        "a second spelling of the card",
        _spelled_twice,
        ALONE,
        r"'zarr.json' of the group, which holds the card",
    ),
    (
        "a field of the card",
        lambda g: edit_card(g, lambda c: c.pop("noise")),
        ALONE,
        r"breaks its schema at noise",
    ),
    (
        "an attribute of the group",
        lambda g: edit_json(
            g / ROOT, lambda d: d["attributes"].update(title="certified by nobody")
        ),
        ALONE,
        r"'zarr.json' of the group",
    ),
    (
        "the group's copy of the metadata",
        lambda g: edit_json(
            g / ROOT,
            lambda d: d["consolidated_metadata"]["metadata"]["data"]["attributes"].update(
                units="MWh"
            ),
        ),
        ALONE,
        r"'zarr.json' of the group",
    ),
    (
        "a coordinate",
        lambda g: (g / "day/c/0").write_bytes(np.arange(1, 13).tobytes()),
        ALONE,
        r"'day/c/0' was changed",
    ),
    (
        "a coordinate's units",
        lambda g: edit_json(g / "day" / ROOT, lambda d: d["attributes"].update(units="hours")),
        ALONE,
        r"'day/zarr.json' was changed",
    ),
    (
        "a noise factor",
        lambda g: edit_chunk(next((g / "dp_release").glob("noise_*matrix/c/0/0"))),
        ALONE,
        r"'dp_release/noise_.*matrix/c/0/0' was changed",
    ),
    ("a line of the manifest", _manifest_line, ALONE, r"the manifest is not the one on the card"),
    (
        "the manifest removed",
        lambda g: shutil.rmtree(g / MANIFEST_ARRAY),
        ALONE,
        r"the manifest is not the one on the card",
    ),
    (
        "the manifest's metadata",
        lambda g: edit_json(g / MANIFEST_ARRAY / ROOT, lambda d: d.update(shape=[1])),
        ALONE,
        r"'dp_release/manifest/zarr.json' was changed",
    ),
    ("noise smaller than the guarantee needs", _quieter, ALONE, r"noise on the card is smaller"),
    (
        "attributes that do not follow from the card",
        lambda g: (_attribute("dp:delta", 1e-9)(g), reseal(g))[1],
        ALONE,
        r"do not follow",
    ),
    (
        "everything, to agree with itself, for the ledger",
        _forged,
        LEDGER,
        r"the ledger committed another card",
    ),
    (
        "everything, to agree with itself, for the signature",
        _forged,
        ALONE,
        r"signature does not fit",
    ),
    (
        "everything, signed by another key",
        _signed_anew,
        TRUST,
        r"signed by ed25519:\w+, not by the trusted ed25519:",
    ),
    ("the signature removed", _unsigned, ALONE, r"do not belong together"),
    ("the signature and its mention removed", _never_signed, TRUST, r"the release is unsigned"),
]


def _verify(
    space: Workspace,
    group: Path,
    how: tuple[str, ...],
    ledger: str = "ledger.db",
    key: str = "curator.key.pub",
) -> Any:
    options = {"--ledger": f"sqlite:///{space.folder}/{ledger}", "--trust": str(space.folder / key)}
    return CliRunner().invoke(
        main, ["verify", str(group), *(part for name in how for part in (name, options[name]))]
    )


@pytest.mark.parametrize(
    ("kind", "tamper", "how", "reason"), KINDS, ids=[kind for kind, *_ in KINDS]
)
def test_tampering_is_found_with_the_right_reason(
    published: Workspace,
    tmp_path: Path,
    kind: str,
    tamper: Tamper,
    how: tuple[str, ...],
    reason: str,
) -> None:
    group = tmp_path / "out.zarr"
    shutil.copytree(published.folder / "out.zarr", group)
    tamper(group)
    result = _verify(published, group, how)
    assert result.exit_code == 4, result.output
    assert result.stderr.count("\n") == 1
    assert re.search(reason, result.stderr), result.stderr


def test_an_untouched_release_verifies_by_itself_by_the_ledger_and_by_the_curators_key(
    published: Workspace,
) -> None:
    for how in (ALONE, LEDGER, TRUST, LEDGER + TRUST):
        result = _verify(published, published.folder / "out.zarr", how)
        assert result.exit_code == 0, result.output


def test_a_ledger_from_before_the_release_does_not_verify_it(published: Workspace) -> None:
    result = _verify(published, published.folder / "out.zarr", LEDGER, ledger="before.db")
    assert result.exit_code == 4
    assert "restored from an older copy" in result.stderr


def test_the_manifest_is_an_array_that_any_reader_can_use(published: Workspace) -> None:
    group = published.folder / "out.zarr"
    text = bytes(np.asarray(zarr.open_array(group / MANIFEST_ARRAY, mode="r")[...])).decode()
    listed = {line.split(" ", 2)[2] for line in text.splitlines()}
    stored = {str(path.relative_to(group)) for path in group.rglob("*") if path.is_file()}
    assert listed == {name for name in stored if not name.startswith(f"{MANIFEST_ARRAY}/")}
    assert json.loads((group / ROOT).read_text())["attributes"]["dp"]["manifest"]["objects"] == len(
        listed
    )
