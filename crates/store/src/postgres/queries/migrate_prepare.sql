-- An owner of the schema need not be allowed to make one.
DO $$
BEGIN
    IF to_regnamespace('tidegate') IS NULL THEN
        CREATE SCHEMA tidegate;
    END IF;
END $$;
CREATE TABLE IF NOT EXISTS tidegate.migrations (
    version             bigint PRIMARY KEY,
    name                text NOT NULL,
    checksum            text NOT NULL,
    applied_at          timestamptz NOT NULL DEFAULT now(),
    -- The version that a program must know to work with the schema; NULL is the version itself.
    min_program_version bigint
);
