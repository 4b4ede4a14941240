-- Puts tasks where they go and slots into their hands. Who comes to a line first, in the order
-- given, gets the next place; who moves to another keeps its own.
WITH scheduled AS (
    INSERT INTO tidegate.scheduled (task, run_at)
    SELECT * FROM unnest($1::bigint[], $2::bigint[])),
arrived AS (
    INSERT INTO tidegate.arrived (task, job) SELECT * FROM unnest($3::bigint[], $25::text[])),
ready AS (
    INSERT INTO tidegate.ready (task, lane, rank, tag, stamp, gated, since)
    SELECT * FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
                         $9::boolean[], $10::bigint[])),
line AS (
    INSERT INTO tidegate.line (task, limit_id, class, rank, tag, place, lane, moves, passed,
                               since, plain)
    SELECT n.task, n.limit_id, n.class, n.rank, n.tag,
           coalesce(n.place, nextval('tidegate.places')), n.lane, n.moves, n.passed, n.since, n.plain
    FROM unnest($11::bigint[], $12::bigint[], $13::int[], $14::bigint[], $15::bigint[],
                $16::bigint[], $17::bigint[], $18::bigint[], $19::boolean[], $20::bigint[], $24::boolean[])
         AS n (task, limit_id, class, rank, tag, place, lane, moves, passed, since, plain))
INSERT INTO tidegate.slots (limit_id, number, task)
SELECT * FROM unnest($21::bigint[], $22::bigint[], $23::bigint[])
