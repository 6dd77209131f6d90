"""Accounting policies of datasets: sums of mu^2, or of epsilons; fixed at the opening."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dpdask import GaussianProfile, PrivacyBudget
from dpdask.accounting import PureProfile, dominating_gaussian
from dpdask.cli import main
from dpdask.errors import BudgetExceeded, InvalidBudget, LedgerCorrupt, LedgerError
from dpdask.ledger import Block, Ledger, PrivacyUnit
from dpdask.ledger.charges import NOTHING, Spent
from dpdask.ledger.hash_chain import chain_hash
from dpdask.ledger.policies import ADAPTIVE, POLICIES
from dpdask.planning import make_plan
from dpdask.privacy import PureBudget
from dpdask.releases.read import read_card
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace

ARRAY = hashlib.sha256(b"array").hexdigest()
HALF = PureProfile(0.5)


def fingerprint(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def unit(start: int, stop: int) -> PrivacyUnit:
    return PrivacyUnit(array=ARRAY, record_axis=0, block=Block(0, start, stop))


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    book = Ledger(url)
    book.open_dataset("people", PureBudget(epsilon=2.0), policy="pure")
    yield book
    book.close()


def test_epsilons_add_up_to_the_total_and_not_beyond(ledger: Ledger) -> None:
    for number in range(4):
        assert ledger.forecast("people", HALF).more == 3 - number
        ledger.reserve("people", fingerprint(number), HALF)
        assert ledger.spent_epsilon("people") == 0.5 * (number + 1)
    with pytest.raises(BudgetExceeded, match=r"spent epsilon 2 of 2 at delta 0"):
        ledger.reserve("people", fingerprint("fifth"), PureProfile(1e-9))
    state = ledger.state("people")
    assert (state.policy, state.total.delta) == ("pure", 0.0)
    assert state.zcdp == (2.0, 0.0)
    assert not state.overspent
    assert ledger.verify() == 5


def test_the_same_releases_cost_more_by_the_sum_of_mu_squared(tmp_path: Path) -> None:
    """The twin: why Laplace noise has a policy of its own."""
    book = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    book.open_dataset("people", PrivacyBudget(epsilon=2.0, delta=1e-6))
    with pytest.raises(BudgetExceeded):
        book.reserve("people", fingerprint(0), HALF)
    assert dominating_gaussian(HALF, delta0=0.0).mu > 0.6


def test_only_pure_releases_are_taken(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match=r"policy pure.*use mechanism: laplace"):
        ledger.reserve("people", fingerprint("gaussian"), GaussianProfile(0.01))
    assert ledger.state("people").releases == {}


def test_blocks_are_charged_by_the_largest_sum_of_epsilons(ledger: Ledger) -> None:
    for day in range(30):
        ledger.reserve("people", fingerprint(day), HALF, unit(day, day + 1))
    assert ledger.spent_epsilon("people") == 0.5
    ledger.reserve("people", fingerprint("overlap"), PureProfile(0.25), unit(3, 5))
    assert ledger.spent_epsilon("people") == 0.75
    forecast = ledger.forecast("people", PureProfile(0.25), unit(40, 50))
    assert forecast.window is not None
    assert (forecast.window.spent, forecast.window.left) == (0.25, 2.0)
    ledger.reserve("people", fingerprint("everybody"), HALF)
    assert ledger.spent_epsilon("people") == 1.25
    assert ledger.verify() == 33


def test_sums_are_exact_and_rounded_up() -> None:
    pure = POLICIES["pure"]
    tenth = Spent.on(PureProfile(0.1))
    assert Fraction(tenth.amount, 1 << 256) == Fraction(0.1)
    spent = tenth.times(10)
    assert not pure.fits(spent, PureBudget(epsilon=1.0))  # 0.1 is stored as slightly more
    assert pure.fits(tenth.times(9), PureBudget(epsilon=1.0))
    assert pure.profile(spent).epsilon(0.0) > 1.0
    assert pure.profile(NOTHING).epsilon(0.0) == 0.0
    rho, delta = ADAPTIVE.zcdp(Spent.on(dominating_gaussian(GaussianProfile(0.5), delta0=0.0)))
    assert (rho, delta) == (0.125, 0.0)


def test_a_policy_and_its_total_never_change(ledger: Ledger) -> None:
    ledger.open_dataset("people", PureBudget(epsilon=2.0), policy="pure")
    with pytest.raises(LedgerError, match="policy pure, which never changes"):
        ledger.open_dataset("people", PrivacyBudget(epsilon=2.0, delta=1e-6))
    with pytest.raises(LedgerError, match="a total never changes"):
        ledger.open_dataset("people", PureBudget(epsilon=3.0), policy="pure")
    for total, policy in (
        (PrivacyBudget(epsilon=2.0, delta=1e-6), "pure"),
        (PureBudget(epsilon=2.0), "adaptive"),
    ):
        with pytest.raises(LedgerError, match="does not go with the policy"):
            ledger.open_dataset("other", total, policy=policy)
    with pytest.raises(LedgerError, match="'exact' is not a valid accounting policy"):
        ledger.open_dataset("other", PureBudget(epsilon=2.0), policy="exact")
    with pytest.raises(InvalidBudget):
        PureBudget(epsilon=0.0)
    with pytest.raises(InvalidBudget):
        PureBudget(epsilon=1.0, delta=1e-9)


def test_another_policy_or_a_smaller_epsilon_in_the_tables_is_found(tmp_path: Path) -> None:
    for number, (sequence, changes) in enumerate(
        [(1, {"policy": "adaptive"}), (2, {"charge": {"epsilon": 0.1}})]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        book = Ledger(f"sqlite:///{folder}/ledger.db")
        book.open_dataset("people", PureBudget(epsilon=2.0), policy="pure")
        book.reserve("people", fingerprint(0), HALF)
        _rewrite(folder, sequence, changes)
        with pytest.raises(LedgerCorrupt):
            book.verify()


def _rewrite(folder: Path, sequence: int, changes: dict[str, Any]) -> None:
    """Change an entry, its sums, and every hash after it, so that the chain fits."""
    with sqlite3.connect(folder / "ledger.db") as raw:
        raw.row_factory = sqlite3.Row
        for (name,) in raw.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            raw.execute(f"DROP TRIGGER {name}")
        previous = "0" * 64
        rows = [dict(row) for row in raw.execute("SELECT * FROM dpdask_entries ORDER BY sequence")]
        for row in rows:
            said = json.loads(row["payload"])
            if row["sequence"] == sequence:
                said.update(changes)
                if "charge" in changes:
                    digits = Spent.on(PureProfile(changes["charge"]["epsilon"])).digits()
                    said["spent"], row["mu_squared"] = list(digits), digits[0]
            text = json.dumps(said, sort_keys=True, separators=(",", ":"))
            parts = (previous, row["dataset"], row["fingerprint"] or "", row["kind"], text)
            raw.execute(
                "UPDATE dpdask_entries SET payload = ?, previous = ?, hash = ?, mu_squared = ?"
                " WHERE sequence = ?",
                (text, previous, chain_hash(*parts), row["mu_squared"], row["sequence"]),
            )
            previous = chain_hash(*parts)


def test_the_commands_open_and_show_a_policy(tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        url = f"sqlite:///{tmp_path}/ledger.db"
        return CliRunner().invoke(main, ["ledger", *arguments, "--ledger", url])

    assert run("init", "counts", "--epsilon", "2", "--policy", "pure").exit_code == 0
    assert run("init", "people", "--epsilon", "2").exit_code == 2  # a delta is needed
    assert run("init", "people", "--epsilon", "2", "--delta", "1e-6").exit_code == 0
    refused = run("init", "more", "--epsilon", "2", "--delta", "1e-6", "--policy", "pure")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    listed = json.loads(run("list", "--json").stdout)["datasets"]
    assert {one["dataset"]: one["policy"] for one in listed} == {
        "counts": "pure",
        "people": "adaptive",
    }
    assert "pure" in run("show", "counts").stdout
    assert "zCDP: rho 0" in run("show", "people", "--zcdp").stdout


def test_laplace_histograms_are_released_from_a_pure_dataset(tmp_path: Path) -> None:
    """Four releases of epsilon 0.5 from a total of 2; the card verifies and states delta 0."""
    space = Workspace(tmp_path)
    space.ledger.open_dataset("people", PureBudget(epsilon=2.0), policy="pure")
    space.source(np.random.default_rng(3).uniform(size=(200, 1)))
    for number in range(5):
        changes = {
            "output": {"url": f"{tmp_path}/{number}.zarr"},
            "query": {"name": "histogram", "edges": [[0.0, 0.5, 1.0]]},
            "privacy_unit": {"record_dim": 0},
            "privacy": {"epsilon": 0.5, "delta": 1e-6},
            "mechanism": "laplace",
            "publish": {"edition": number + 1},
        }
        if number == 4:
            with pytest.raises(BudgetExceeded):
                space.release(**changes)
            break
        plan = make_plan(parse_release_spec(space.spec(**changes)), ledger=space.ledger)
        assert plan.to_dict()["ledger"]["more"] == 3 - number
        space.release(**changes)
        card = read_card(f"{tmp_path}/{number}.zarr")
        assert card.composition.total.delta == 0
        assert card.composition.cumulative_epsilon == pytest.approx(0.5 * (number + 1), rel=1e-6)
        command = ["verify", f"{tmp_path}/{number}.zarr", "--ledger", space.ledger_url]
        assert CliRunner().invoke(main, command).exit_code == 0
    space.ledger.verify()
