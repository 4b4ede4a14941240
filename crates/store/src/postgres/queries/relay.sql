-- Ends attempts that went well ($6 under $7, with the results $8; their leases $9 are locked) and
-- hands the slots they held to the first in line, who run on under a new lease of this worker. The
-- numbers stay, so the limits' rows are only read: this transaction shares them with all who do
-- the same, and whoever changes one has it alone. What finds nobody in line is given back.
--
-- It is what a finish and a claim would do one after the other, where that is plain: every limit is
-- calm, nobody in line needs anything else, this worker serves those next in line, and nothing waits at
-- the gate. There are as many slots as were told ($14). Either everybody finds a next one or nobody
-- does, unless more are wanted ($15): then a claim follows in the same transaction and fills up.
-- Otherwise nothing is done at all, and neither where something is ready (from $10 to $13 on, where the
-- claims of this process begin) that comes before them; unless others end beside ($21), with which a
-- claim goes along: then they are ready with their slots, and the claim takes whoever is first.
--
-- A line is read from behind what this process took of it last ($16 to $20), unless more have come to
-- it since: what left stays in the index until the server has cleaned up.
--
-- `look.sql` comes before; `end.sql` and `relayed.sql` follow.
, packed AS MATERIALIZED (
    SELECT l.token, one.task, one.limit_id, one.number,
           -- Here and not in a WHERE, where it would become a join.
           (one.task, l.token) IN (SELECT * FROM unnest($6::bigint[], $7::bigint[])) AS is_told
    FROM tidegate.leases l
    CROSS JOIN LATERAL unnest(l.tasks, l.limits, l.numbers) AS one (task, limit_id, number)
    WHERE l.token = ANY ($9)
), given AS MATERIALIZED (
    SELECT of_limit.id, of_limit.numbers, cardinality(of_limit.numbers) AS slots, l.name, l.refused,
           l.calm AND NOT EXISTS (
               SELECT FROM tidegate.line WHERE limit_id = of_limit.id AND NOT plain) AS is_calm,
           array_position($16::bigint[], of_limit.id) AS floor
    FROM (
        SELECT limit_id AS id, array_agg(number ORDER BY number) AS numbers
        FROM packed WHERE is_told AND limit_id IS NOT NULL GROUP BY limit_id
    ) AS of_limit
    CROSS JOIN LATERAL (
        SELECT name, calm, refused FROM tidegate.limits WHERE id = of_limit.id OFFSET 0
    ) AS l
), plain AS MATERIALIZED (
    SELECT seen.is_noted AND NOT seen.has_gate_work
           AND (SELECT count(*) FROM packed WHERE is_told) = cardinality($6)
           AND (SELECT bool_and(is_calm) AND sum(slots) = $14 FROM given) AS is_so
    FROM seen
), head AS MATERIALIZED (
    SELECT given.id AS limit_id, given.name, given.refused, first.row, first.task, first.lane,
           first.rank, first.tag AS line_tag, first.place,
           CASE WHEN first.tag < 0 THEN first.tag ELSE seen.virtual_time END AS tag,
           given.numbers[row_number() OVER (
               PARTITION BY given.id ORDER BY first.rank, first.tag, first.place)] AS number
    FROM seen CROSS JOIN given
    CROSS JOIN LATERAL (
        SELECT CASE WHEN given.refused = ($17::bigint[])[given.floor] THEN given.floor END AS floor
    ) AS known
    CROSS JOIN LATERAL (
        SELECT coalesce(($18::bigint[])[known.floor], -9223372036854775808) AS rank,
               coalesce(($19::bigint[])[known.floor], 0) AS tag,
               coalesce(($20::bigint[])[known.floor], 0) AS place
    ) AS from_here
    CROSS JOIN LATERAL (
        SELECT ctid AS row, task, lane, rank, tag, place FROM tidegate.line
        WHERE limit_id = given.id AND class = 1
          AND (rank, tag, place) > (from_here.rank, from_here.tag, from_here.place)
        ORDER BY rank, tag, place LIMIT given.slots FOR UPDATE SKIP LOCKED
    ) AS first
    WHERE (SELECT is_so FROM plain)
), next AS MATERIALIZED (
    SELECT head.*, open.id IS NOT NULL AS is_served FROM head LEFT JOIN open ON open.id = head.lane
), last AS MATERIALIZED (
    SELECT rank, tag, task FROM next ORDER BY rank DESC, tag DESC, task DESC LIMIT 1
), earlier AS MATERIALIZED (
    SELECT FROM last CROSS JOIN open
    CROSS JOIN LATERAL (SELECT array_position($10::bigint[], open.id) AS place) AS floor
    CROSS JOIN LATERAL (
        SELECT r.rank, r.tag, r.task FROM tidegate.ready r
        WHERE r.lane = open.id
          AND (r.rank, r.tag, r.task) >= (
              coalesce(($11::bigint[])[floor.place], -9223372036854775808),
              coalesce(($12::bigint[])[floor.place], 0), coalesce(($13::bigint[])[floor.place], 0))
        ORDER BY r.rank, r.tag, r.task LIMIT 1
    ) AS first
    WHERE (first.rank, first.tag, first.task) < (last.rank, last.tag, last.task)
), relay AS MATERIALIZED (
    SELECT order_is.first AS is_first,
           coalesce((SELECT is_so FROM plain), false)
           AND coalesce((SELECT bool_and(is_served) FROM next), true)
           AND (order_is.first OR $21::boolean)
           AND ($15::bigint > $14::bigint OR (SELECT count(*) FROM next) IN (0, $14)) AS is_on
    FROM (SELECT NOT EXISTS (SELECT FROM earlier) AS first) AS order_is
), listed AS MATERIALIZED (
    SELECT token, task, limit_id, number, is_told AND (SELECT is_on FROM relay) AS ends FROM packed
), ending AS MATERIALIZED (
    SELECT coalesce(array_agg(task), '{}') AS tasks, $6::bigint[] AS told, $8::bytea[] AS results
    FROM listed WHERE ends
), handed AS MATERIALIZED (
    SELECT array_agg(task) AS tasks, array_agg(limit_id) AS limits, array_agg(number) AS numbers,
           array_agg(name) AS names
    FROM (SELECT * FROM next ORDER BY rank, tag, task) AS next WHERE (SELECT is_on AND is_first FROM relay)
), left_line AS (
    DELETE FROM tidegate.line WHERE ctid = ANY (ARRAY (
        SELECT row FROM next WHERE (SELECT is_on FROM relay)))
), lease AS (
    INSERT INTO tidegate.leases (token, worker, expires_at, started_at, tasks, limits, numbers)
    SELECT nextval('tidegate.tokens'), $3, moment.now + $4, moment.now, tasks, limits, numbers
    FROM moment CROSS JOIN handed WHERE tasks IS NOT NULL
    RETURNING token, expires_at
), let_in AS (
    INSERT INTO tidegate.ready (task, lane, rank, tag, stamp, gated, since)
    SELECT next.task, next.lane, next.rank, next.tag, seen.limits_version, true, moment.now
    FROM next CROSS JOIN seen CROSS JOIN moment
    WHERE (SELECT is_on AND NOT is_first FROM relay)
), written AS (
    INSERT INTO tidegate.slots (limit_id, number, task)
    SELECT limit_id, number, task FROM next WHERE (SELECT is_on AND NOT is_first FROM relay)
), pass AS MATERIALIZED (
    SELECT given.id, count.taken, given.numbers[count.taken + 1:]::integer[] AS freed, mine.row,
           -- Somebody waits whom another is about to take: if that comes to nothing, a slot is free.
           count.taken < given.slots AND EXISTS (
               SELECT FROM tidegate.line WHERE limit_id = given.id AND class = 1
               AND ctid <> ALL (ARRAY (SELECT row FROM next))) AS urgent
    FROM given
    CROSS JOIN LATERAL (SELECT count(*) AS taken FROM next WHERE limit_id = given.id) AS count
    LEFT JOIN LATERAL (
        SELECT ctid AS row FROM tidegate.passes
        WHERE limit_id = given.id AND backend = pg_backend_pid() LIMIT 1
    ) AS mine ON true
    WHERE (SELECT is_on FROM relay)
), added AS (
    UPDATE tidegate.passes p
    SET freed = p.freed || pass.freed, taken = p.taken + pass.taken, urgent = p.urgent OR pass.urgent
    FROM pass WHERE p.ctid = pass.row
), noted AS (
    INSERT INTO tidegate.passes (limit_id, tasks, urgent, freed, taken, backend)
    SELECT id, 0, urgent, freed, taken, pg_backend_pid() FROM pass WHERE row IS NULL
)
