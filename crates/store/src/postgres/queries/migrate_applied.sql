SELECT m.version, m.checksum = md5(known.source) AS is_same
FROM tidegate.migrations m
LEFT JOIN unnest($1::text[]) WITH ORDINALITY AS known (source, version) USING (version)
ORDER BY m.version
