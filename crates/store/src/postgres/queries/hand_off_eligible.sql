-- Who is first in the lines of limits for the slots of attempts that went well ($7 under $8, whose leases
-- $10 are locked), and whether these may change hands without the limits' locks. The numbers stay, so
-- the limits' rows are only read: this transaction shares them with all who do the same, and
-- whoever changes one has it alone.
--
-- They may where that is plain: every limit allows hand-offs and is one of those that are shared ($12), nobody
-- in line needs anything else, nothing waits at the gate, and there are as many slots as were told
-- ($11).
--
-- A line is read from behind what this process took of it last ($14 to $16), unless more have come to
-- it since ($13): what left stays in the index until the server has cleaned up.
--
-- `claim_probe.sql` comes before, and what hands them on follows.
, listed AS MATERIALIZED (
    SELECT l.token, one.task, one.limit_id, one.number,
           -- Here and not in a WHERE, where it would become a join.
           (one.task, l.token) IN (SELECT * FROM unnest($7::bigint[], $8::bigint[])) AS ends
    FROM tidegate.leases l
    CROSS JOIN LATERAL unnest(l.tasks, l.limits, l.numbers) AS one (task, limit_id, number)
    WHERE l.token = ANY ($10)
), given AS MATERIALIZED (
    SELECT of_limit.id, of_limit.numbers, cardinality(of_limit.numbers) AS slots, l.name, l.parked_total,
           l.allows_hand_off AND of_limit.id = ANY ($12)
           -- With the OFFSET the planner cannot hash the waiters of all limits instead.
           AND NOT EXISTS (
               SELECT FROM tidegate.waiters WHERE limit_id = of_limit.id AND NOT single_slot OFFSET 0
           ) AS allows_hand_off,
           CASE WHEN l.parked_total = ($13::bigint[])[known.place] THEN known.place END AS floor
    FROM (
        SELECT limit_id AS id, array_agg(number ORDER BY number) AS numbers
        FROM listed WHERE ends AND limit_id IS NOT NULL GROUP BY limit_id
    ) AS of_limit
    CROSS JOIN LATERAL (
        SELECT name, allows_hand_off, parked_total FROM tidegate.limits WHERE id = of_limit.id OFFSET 0
    ) AS l
    CROSS JOIN LATERAL (SELECT array_position($12::bigint[], of_limit.id) AS place) AS known
), eligible AS MATERIALIZED (
    SELECT seen.*, seen.is_noted AND NOT seen.has_gate_work
           AND coalesce((SELECT bool_and(allows_hand_off) AND sum(slots) = $11 FROM given), false) AS is_so
    FROM seen
), head AS MATERIALIZED (
    SELECT given.id AS limit_id, given.name, given.parked_total, given.numbers[first.number] AS number,
           first.row, first.task, first.lane, first.rank, first.tag AS line_tag, first.admission_seq,
           CASE WHEN first.tag < 0 THEN first.tag ELSE eligible.virtual_time END AS tag, eligible.open
    FROM eligible CROSS JOIN given
    CROSS JOIN LATERAL (
        SELECT *, row_number() OVER () AS number
        FROM (
            SELECT ctid AS row, task, lane, rank, tag, admission_seq FROM tidegate.waiters
            WHERE limit_id = given.id AND wait_reason = 1
              AND (rank, tag, admission_seq) > (
                  coalesce(($14::bigint[])[given.floor], -9223372036854775808),
                  coalesce(($15::bigint[])[given.floor], 0), coalesce(($16::bigint[])[given.floor], 0))
            ORDER BY rank, tag, admission_seq LIMIT given.slots FOR UPDATE SKIP LOCKED
        ) AS locked
    ) AS first
    WHERE eligible.is_so
), next AS MATERIALIZED (
    -- Lists side by side, in the order of the lines; and all in the order in which they run.
    SELECT count(*) AS slots, array_agg(row) AS rows, array_agg(task) AS holders,
           array_agg(lane) AS lanes, array_agg(limit_id) AS limits, array_agg(number) AS numbers,
           array_agg(name) AS names, array_agg(parked_total) AS parked_total, array_agg(rank) AS ranks,
           array_agg(line_tag) AS line_tags, array_agg(admission_seq) AS places, array_agg(tag) AS tags,
           array_agg(task ORDER BY rank, tag, task) AS tasks, max(ARRAY[rank, tag, task]) AS last,
           coalesce(bool_and(lane = ANY (open)), true) AS are_served
    FROM head
)
