-- What a transaction reads under the locks of some limits ($1), in one statement: the heads of their lines (in
-- turn, waiting for a seat, and too heavy), and the tasks it is about ($2) wherever they stand; with what the
-- rules must know of each, and the slots it holds by rows. The heads are more than the gate may look at, so no
-- line seems to end early.
WITH head AS MATERIALIZED (
    SELECT row.*
    FROM unnest($1::bigint[]) AS of_limit (id)
    CROSS JOIN LATERAL (
        (SELECT * FROM tidegate.waiters WHERE limit_id = of_limit.id AND wait_reason <= 1
         ORDER BY wait_reason, rank, tag, admission_seq LIMIT {page})
        UNION ALL
        (SELECT * FROM tidegate.waiters WHERE limit_id = of_limit.id AND wait_reason = 2
         ORDER BY rank, tag, admission_seq LIMIT {page})
        UNION ALL
        (SELECT * FROM tidegate.waiters WHERE limit_id = of_limit.id AND wait_reason = 3
         ORDER BY rank, tag, admission_seq LIMIT {page})
    ) AS row
), row AS (
    SELECT task, limit_id, wait_reason, rank, tag, admission_seq, queue_switches, in_job_window,
           due_at AS waiter_due_at, true AS is_head
    FROM head
    UNION ALL
    SELECT own.task, l.limit_id, l.wait_reason, l.rank, l.tag, l.admission_seq, l.queue_switches, l.in_job_window,
           l.due_at, false
    FROM unnest($2::bigint[]) AS own (task)
    LEFT JOIN LATERAL (SELECT * FROM tidegate.waiters WHERE task = own.task OFFSET 0) AS l ON true
    WHERE own.task NOT IN (SELECT task FROM head)
)
SELECT row.*, t.id, t.lane, t.kind, t.queue, t.group_name, t.job, t.workflow, t.unique_key,
       t.weight, t.priority, t.max_attempts, t.timeout_ms, t.attempts_used, t.crashes, t.due_at,
       t.created_at, t.on_failure, t.error, w.id AS workflow_limit, j.id AS job_limit, g.id AS group_limit,
       held.limits AS held_limits, held.numbers AS held_numbers
FROM row
CROSS JOIN LATERAL (
    SELECT * FROM tidegate.tasks WHERE id = row.task OFFSET 0
) AS t
LEFT JOIN LATERAL (
    SELECT id FROM tidegate.limits WHERE name = 'workflow:' || t.workflow OFFSET 0
) AS w ON true
LEFT JOIN LATERAL (
    SELECT id FROM tidegate.limits WHERE name = 'job:' || t.job OFFSET 0
) AS j ON true
LEFT JOIN LATERAL (
    SELECT id FROM tidegate.limits WHERE name = 'group:' || coalesce(t.group_name, t.kind) OFFSET 0
) AS g ON true
CROSS JOIN LATERAL (
    SELECT array_agg(limit_id) AS limits, array_agg(number) AS numbers
    FROM (SELECT limit_id, number FROM tidegate.slots WHERE task = row.task OFFSET 0) AS s
) AS held
