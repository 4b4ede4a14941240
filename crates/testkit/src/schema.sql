-- The schema as text: the same for every version of PostgreSQL.
SELECT coalesce(string_agg(part, E'\n' ORDER BY kind, name), '') FROM (
    SELECT 1 AS kind, c.relname::text AS name, format('TABLE %s%s%s', c.relname,
        coalesce(' WITH (' || array_to_string(c.reloptions, ', ') || ')', ''),
        (SELECT string_agg(format(E'\n    %s %s%s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
                CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END,
                CASE WHEN a.attidentity = 'a' THEN ' GENERATED ALWAYS AS IDENTITY' ELSE '' END,
                coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '')), '' ORDER BY a.attnum)
         FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
        || coalesce((SELECT string_agg(format(E'\n    %s', pg_get_constraintdef(k.oid)), '' ORDER BY k.conname)
            FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('p', 'u', 'c')), '')) AS part
    FROM pg_class c WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind IN ('r', 'p')
    UNION ALL
    SELECT 2, c.relname, pg_get_indexdef(c.oid) FROM pg_class c
    WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind = 'i'
      AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = c.oid)
    UNION ALL
    SELECT 3, c.relname, 'SEQUENCE ' || c.relname FROM pg_class c
    WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind = 'S'
    UNION ALL
    SELECT 4, c.relname, 'VIEW ' || c.relname || ' (' || (
        SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0) || ')' FROM pg_class c
    WHERE c.relnamespace = 'tidegate'::regnamespace AND c.relkind = 'v'
    UNION ALL
    SELECT 5, p.proname, format('FUNCTION %s(%s) RETURNS %s%s%s', p.proname, pg_get_function_arguments(p.oid),
        pg_get_function_result(p.oid), CASE WHEN p.prosecdef THEN ' SECURITY DEFINER' ELSE '' END,
        coalesce(' SET ' || array_to_string(p.proconfig, ', '), ''))
    FROM pg_proc p WHERE p.pronamespace = 'tidegate'::regnamespace
) AS parts
