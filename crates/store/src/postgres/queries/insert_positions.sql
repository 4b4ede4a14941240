-- Puts tasks where they go and slots into their hands. Who comes to a line first, in the order
-- given, gets the next place; who moves to another keeps its own.
WITH scheduled AS (
    INSERT INTO tidegate.scheduled (task, run_at)
    SELECT * FROM unnest($1::bigint[], $2::bigint[])),
inbox AS (
    INSERT INTO tidegate.inbox (task, job) SELECT * FROM unnest($3::bigint[], $25::text[])),
ready AS (
    INSERT INTO tidegate.ready (task, lane, rank, tag, limits_version, holds_slots, ready_at)
    SELECT * FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
                         $9::boolean[], $10::bigint[])),
waiters AS (
    INSERT INTO tidegate.waiters (task, limit_id, wait_reason, rank, tag, admission_seq, lane,
                                  queue_switches, in_job_window, due_at, single_slot)
    SELECT n.task, n.limit_id, n.wait_reason, n.rank, n.tag,
           coalesce(n.admission_seq, nextval('tidegate.admission_seqs')), n.lane, n.queue_switches,
           n.in_job_window, n.due_at, n.single_slot
    FROM unnest($11::bigint[], $12::bigint[], $13::int[], $14::bigint[], $15::bigint[],
                $16::bigint[], $17::bigint[], $18::bigint[], $19::boolean[], $20::bigint[], $24::boolean[])
         AS n (task, limit_id, wait_reason, rank, tag, admission_seq, lane, queue_switches, in_job_window,
               due_at, single_slot))
INSERT INTO tidegate.slots (limit_id, number, task)
SELECT * FROM unnest($21::bigint[], $22::bigint[], $23::bigint[])
