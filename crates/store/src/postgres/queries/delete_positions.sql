-- Takes tasks out of where they stood and slots out of their hands. Fails, by a division by zero, where
-- other than $8 rows were there: each of them is guarded by a lock this transaction has. A COMMIT is sent
-- together with this statement, so the client cannot check it.
WITH scheduled AS (DELETE FROM tidegate.scheduled WHERE task = ANY ($1) RETURNING 1),
     inbox AS (DELETE FROM tidegate.inbox WHERE task = ANY ($2) RETURNING 1),
     ready AS (DELETE FROM tidegate.ready WHERE task = ANY ($3) RETURNING 1),
     waiters AS (DELETE FROM tidegate.waiters WHERE task = ANY ($4) RETURNING 1),
     running AS (DELETE FROM tidegate.running WHERE task = ANY ($5) RETURNING 1),
     slots AS (DELETE FROM tidegate.slots s
               USING unnest($6::bigint[], $7::bigint[]) AS freed (limit_id, number)
               CROSS JOIN LATERAL (
                   SELECT ctid FROM tidegate.slots
                   WHERE limit_id = freed.limit_id AND number = freed.number OFFSET 0
               ) AS row
               WHERE s.ctid = row.ctid RETURNING 1)
SELECT 1 / coalesce((SELECT count(*) FROM scheduled) + (SELECT count(*) FROM inbox)
     + (SELECT count(*) FROM ready) + (SELECT count(*) FROM waiters)
     + (SELECT count(*) FROM running) + (SELECT count(*) FROM slots) = $8::bigint, true)::int AS is_all
