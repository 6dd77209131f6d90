"""Triggers that keep the ledger append-only, also against statements of other programs.

``INSERT OR REPLACE`` deletes rows without firing SQLite's triggers for deletions, so insertions are
guarded too: no row takes the key of another, an entry follows the newest one of its dataset, and
the sum of charges never decreases.
"""

from __future__ import annotations

__all__ = ["block_statements", "trigger_statements"]

_REFUSAL = "the ledger is append-only"

# Rows that must not exist before a row is inserted, by table; an entry must also follow the newest
# one of its dataset.
_TAKEN = {
    "dpdask_schema": ["version = NEW.version"],
    "dpdask_settings": ["name = NEW.name"],
    "dpdask_datasets": ["name = NEW.name"],
    "dpdask_release_keys": ["fingerprint = NEW.fingerprint"],
    "dpdask_entries": [
        "dataset = NEW.dataset AND sequence >= NEW.sequence",
        "hash = NEW.hash",
        "release_id = NEW.release_id",
        "fingerprint = NEW.fingerprint AND kind = NEW.kind AND once_name = NEW.once_name",
    ],
}
_FOLLOWS = (
    "NEW.sequence = 1 OR EXISTS (SELECT 1 FROM dpdask_entries WHERE dataset = NEW.dataset AND"
    " sequence = NEW.sequence - 1"
    " AND hash = NEW.previous AND mu_squared <= NEW.mu_squared AND delta <= NEW.delta)"
)
_DELETED_AT_CLOSE = "dpdask_release_keys"


# A row of dpdask_blocks belongs to the newest entry of its dataset when it is written and when it
# is replaced, and overlaps no row that holds.
_NEWEST = (
    "EXISTS (SELECT 1 FROM dpdask_entries AS entry WHERE entry.dataset = NEW.dataset"
    " AND entry.sequence = {sequence} AND entry.kind = 'reserve')"
    " AND NOT EXISTS (SELECT 1 FROM dpdask_entries AS entry WHERE entry.dataset = NEW.dataset"
    " AND entry.sequence > {sequence})"
)
_SAME_AXIS = "held.dataset = NEW.dataset AND held.array = NEW.array AND held.axis = NEW.axis"
_WRONG_BLOCK = (
    f"NEW.replaced IS NOT NULL OR NEW.start >= NEW.stop OR NOT ({_NEWEST})"
    f" OR EXISTS (SELECT 1 FROM dpdask_blocks AS held WHERE {_SAME_AXIS}"
    " AND held.written = NEW.written AND held.start = NEW.start)"
    f" OR EXISTS (SELECT 1 FROM (SELECT held.stop AS stop FROM dpdask_blocks AS held"
    f" WHERE {_SAME_AXIS} AND held.replaced IS NULL AND held.start < NEW.stop"
    " ORDER BY held.start DESC LIMIT 1) AS before WHERE before.stop > NEW.start)"
).format(sequence="NEW.written")
_KEPT = ("dataset", "array", "axis", "written", "start", "stop", "mu_squared", "delta")
_WRONG_MARK = " OR ".join(
    [
        "OLD.replaced IS NOT NULL",
        "NEW.replaced IS NULL",
        *(f"NEW.{column} <> OLD.{column}" for column in _KEPT),
        f"NOT ({_NEWEST})".format(sequence="NEW.replaced"),
    ]
)


def trigger_statements(dialect: str) -> list[str]:
    """Return the statements that create all triggers."""
    tables = _sqlite() if dialect == "sqlite" else _postgres()
    return tables + block_statements(dialect)


def block_statements(dialect: str) -> list[str]:
    """Return the statements that create the triggers of ``dpdask_blocks``."""
    return _sqlite_blocks() if dialect == "sqlite" else _postgres_blocks()


def _sqlite_blocks() -> list[str]:
    table, refuse = "dpdask_blocks", f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
    return [
        f"CREATE TRIGGER {table}_insert BEFORE INSERT ON {table} WHEN {_WRONG_BLOCK} {refuse}",
        f"CREATE TRIGGER {table}_update BEFORE UPDATE ON {table} WHEN {_WRONG_MARK} {refuse}",
        f"CREATE TRIGGER {table}_delete BEFORE DELETE ON {table} {refuse}",
    ]


def _postgres_blocks() -> list[str]:
    table, statements = "dpdask_blocks", []
    for action, wrong in (("insert", _WRONG_BLOCK), ("update", _WRONG_MARK)):
        function = f"{table}_{action}_check"
        statements += [
            f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF {wrong} THEN RAISE EXCEPTION '{_REFUSAL}'; END IF; RETURN NEW; END $$",
            f"CREATE TRIGGER {table}_{action} BEFORE {action.upper()} ON {table} FOR EACH ROW"
            f" EXECUTE FUNCTION {function}()",
        ]
    append_only = "EXECUTE FUNCTION dpdask_append_only()"
    return [
        *statements,
        f"CREATE TRIGGER {table}_delete BEFORE DELETE ON {table} FOR EACH ROW {append_only}",
        f"CREATE TRIGGER {table}_truncate BEFORE TRUNCATE ON {table} {append_only}",
    ]


def _wrong(table: str) -> str:
    """Return a condition that holds when the NEW row may not be inserted."""
    taken = [f"EXISTS (SELECT 1 FROM {table} WHERE {condition})" for condition in _TAKEN[table]]
    unconnected = [f"NOT ({_FOLLOWS})"] if table == "dpdask_entries" else []
    return " OR ".join([*taken, *unconnected])


def _sqlite() -> list[str]:
    statements = []
    for table in _TAKEN:
        statements.append(
            f"CREATE TRIGGER {table}_insert BEFORE INSERT ON {table} WHEN {_wrong(table)} "
            f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
        )
        for action in ("UPDATE",) if table == _DELETED_AT_CLOSE else ("UPDATE", "DELETE"):
            statements.append(
                f"CREATE TRIGGER {table}_{action.lower()} BEFORE {action} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            )
    return statements


def _postgres() -> list[str]:
    refuse = f"RAISE EXCEPTION '{_REFUSAL}'"
    statements = [
        "CREATE OR REPLACE FUNCTION dpdask_append_only() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN {refuse}; END $$"
    ]
    for table in _TAKEN:
        function = f"{table}_check"
        statements += [
            f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN IF {_wrong(table)} THEN {refuse}; END IF; RETURN NEW; END $$",
            f"CREATE TRIGGER {table}_insert BEFORE INSERT ON {table} FOR EACH ROW EXECUTE"
            f" FUNCTION {function}()",
        ]
        actions = "UPDATE" if table == _DELETED_AT_CLOSE else "UPDATE OR DELETE"
        statements += [
            f"CREATE TRIGGER {table}_change BEFORE {actions} ON {table} FOR EACH ROW EXECUTE"
            " FUNCTION dpdask_append_only()",
            f"CREATE TRIGGER {table}_truncate BEFORE TRUNCATE ON {table} EXECUTE FUNCTION"
            " dpdask_append_only()",
        ]
    return statements
