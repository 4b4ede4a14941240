-- One migration at a time, over all processes; released with the transaction.
SELECT pg_advisory_xact_lock(7453126, 0);
CREATE SCHEMA IF NOT EXISTS tidegate;
CREATE TABLE IF NOT EXISTS tidegate.migrations (
    version    bigint PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
