-- A limit where none was, under the exclusive lock of the limits' version.
INSERT INTO tidegate.limits (name, capacity, source, base_capacity, base_source, version, applies_from_version,
                             waiting, skipped, dirty, last_tag, in_window)
VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 0, false, 0, 0)
RETURNING id
