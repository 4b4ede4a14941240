-- `min_program_version` is the version that a program must know to work with the schema. Through JSON, because the
-- table of an earlier build may have no such column, and it must be refused by its checksum.
SELECT m.version, m.checksum = md5(known.source) AS is_same,
       coalesce((to_jsonb(m) ->> 'min_program_version')::bigint, m.version) AS min_program_version
FROM tidegate.migrations m
LEFT JOIN unnest($1::text[]) WITH ORDINALITY AS known (source, version) USING (version)
ORDER BY m.version
