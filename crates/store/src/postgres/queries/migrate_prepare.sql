-- One migration at a time, over all processes; released with the transaction.
SELECT pg_advisory_xact_lock(7453126, 0);
-- An owner of the schema need not be allowed to make one.
DO $$
BEGIN
    IF to_regnamespace('tidegate') IS NULL THEN
        CREATE SCHEMA tidegate;
    END IF;
END $$;
CREATE TABLE IF NOT EXISTS tidegate.migrations (
    version    bigint PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
