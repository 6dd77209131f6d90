CREATE TABLE dpdask_datasets (
    name VARCHAR(200) NOT NULL,
    epsilon TEXT NOT NULL,
    delta TEXT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE dpdask_release_keys (
    release VARCHAR(64) NOT NULL,
    wrapped INTEGER NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (release)
);
CREATE TABLE dpdask_entries (
    sequence SERIAL NOT NULL,
    dataset VARCHAR(200) NOT NULL,
    release VARCHAR(64),
    kind VARCHAR(20) NOT NULL,
    body TEXT NOT NULL,
    previous VARCHAR(64) NOT NULL,
    hash VARCHAR(64) NOT NULL,
    PRIMARY KEY (sequence),
    UNIQUE (release, kind),
    UNIQUE (dataset, previous),
    FOREIGN KEY(dataset) REFERENCES dpdask_datasets (name),
    UNIQUE (hash)
);
CREATE INDEX ix_dpdask_entries_dataset ON dpdask_entries (dataset);
CREATE OR REPLACE FUNCTION dpdask_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$;
CREATE OR REPLACE TRIGGER dpdask_datasets_append_only BEFORE UPDATE OR DELETE ON dpdask_datasets FOR EACH ROW EXECUTE FUNCTION dpdask_append_only();
CREATE OR REPLACE TRIGGER dpdask_entries_append_only BEFORE UPDATE OR DELETE ON dpdask_entries FOR EACH ROW EXECUTE FUNCTION dpdask_append_only();
