"""The recovery table: every combination of lock, ledger, output, staging and command has a line."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from dpdask.errors import LedgerError, OutputLockDamaged, ReleaseError
from dpdask.releases.recovery_table import (
    TABLE,
    Action,
    Advice,
    Charge,
    Command,
    Lock,
    Observation,
    Output,
    Refusal,
    Row,
    Staging,
    decide,
    table_markdown,
)

DOCS = Path(__file__).parents[3] / "docs"

OBSERVATIONS = [Observation(*parts) for parts in itertools.product(Lock, Charge, Output, Staging)]
CASES = list(itertools.product(OBSERVATIONS, Command))


def first_row(observation: Observation, command: Command) -> Row:
    return next(row for row in TABLE if row.fits(observation, command))


def test_every_combination_has_exactly_one_decision() -> None:
    assert len(CASES) == 5 * 5 * 3 * 4 * 10
    for observation, command in CASES:
        outcome = decide(observation, command)
        assert outcome is first_row(observation, command).outcome
        advises = isinstance(outcome, Advice)
        assert advises <= (command is Command.INTERRUPTED)


def test_no_line_of_the_table_is_dead() -> None:
    used = Counter(id(first_row(observation, command)) for observation, command in CASES)
    assert [row for row in TABLE if id(row) not in used] == []


def test_the_documentation_holds_the_table_as_the_code_prints_it() -> None:
    assert table_markdown() in (DOCS / "recovery.md").read_text()


def test_nothing_visible_is_ever_aborted_or_written_again() -> None:
    destructive = {Action.BURN, Action.WITHDRAW}
    for observation, command in CASES:
        if observation.output is Output.THIS:
            assert decide(observation, command) not in destructive


def test_a_release_that_may_become_visible_is_burned_only_where_that_is_impossible() -> None:
    for observation, command in CASES:
        outcome = decide(observation, command)
        if observation.charge is Charge.COMPLETE and outcome is Action.BURN:
            assert command is Command.ABANDON_INVISIBLE
        if outcome is Action.WITHDRAW:
            assert observation.lock is Lock.HELD
            assert observation.staging in (Staging.LOCAL_PARTIAL, Staging.LOCAL_READY)


def test_what_is_closed_is_never_continued() -> None:
    for observation, command in CASES:
        if observation.charge in (Charge.COMMITTED, Charge.BURNED):
            assert decide(observation, command) not in (Action.CONTINUE, Action.PUBLISH)


def test_only_what_was_never_charged_begins_anew() -> None:
    for observation, command in CASES:
        if decide(observation, command) is Action.BEGIN and command is not Command.PLAN:
            assert observation.charge is Charge.NONE
            assert observation.lock is Lock.ABSENT


def test_planning_and_running_refuse_whatever_is_locked() -> None:
    for observation, command in CASES:
        if command in (Command.PLAN, Command.RUN) and observation.lock is not Lock.ABSENT:
            assert isinstance(decide(observation, command), Refusal)


def test_a_failed_run_keeps_what_was_charged_and_is_open() -> None:
    for observation, command in CASES:
        if command not in (Command.CLEAN_UP, Command.CLEAN_UP_OWN_LOCK):
            continue
        is_open = observation.charge in (Charge.RESERVED, Charge.COMPLETE)
        assert (decide(observation, command) is Action.KEEP) or not is_open


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (Refusal.UNFINISHED, ReleaseError),
        (Refusal.MAY_BE_VISIBLE, LedgerError),
        (Refusal.LOCK_DAMAGED, OutputLockDamaged),
        (Refusal.LOCK_FOREIGN, OutputLockDamaged),
    ],
)
def test_refusals_are_errors_of_their_kind(refusal: Refusal, kind: type[Exception]) -> None:
    assert type(refusal.error("burn")) is kind


def test_refusals_name_the_step_that_closed_a_release() -> None:
    assert "closed by burn" in str(Refusal.CLOSED.error("burn"))
    assert "closed by commit" in str(Refusal.LEFT_NOTHING.error("commit"))
