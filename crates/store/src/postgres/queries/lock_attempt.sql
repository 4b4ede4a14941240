-- Fails, by a division by zero, where the attempt at $1 under the token $2 does not run any more. Else it
-- runs until this transaction ends: whoever would end the attempt, by its row or by the lease that lists
-- it, waits. A heartbeat does not: it leaves the lease's key alone.
--
-- The lease is locked only where there is no row, as rows of attempts come before leases in the one order
-- of locks. One that is unpacked at this moment is found neither here nor there: look again.
WITH apart AS MATERIALIZED (
    SELECT FROM tidegate.running WHERE task = $1 AND token = $2 FOR KEY SHARE
), listed AS MATERIALIZED (
    SELECT FROM tidegate.leases
    WHERE token = $2 AND $1 = ANY (tasks) AND (SELECT count(*) FROM apart) = 0
    FOR KEY SHARE
)
SELECT 1 / ((SELECT count(*) FROM apart) + (SELECT count(*) FROM listed)) AS runs
