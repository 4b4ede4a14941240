-- What runs under one limit needs no row of its own either: its lease lists it with its slot. The
-- first tasks of a lease are those with slots; `limits` and `numbers` say which, in the same order.
ALTER TABLE tidegate.leases
    ADD COLUMN limits bigint[] NOT NULL DEFAULT '{}',
    ADD COLUMN numbers bigint[] NOT NULL DEFAULT '{}';

-- What is held, wherever that is written.
CREATE VIEW tidegate.holdings AS
SELECT limit_id, number, task FROM tidegate.slots
UNION ALL
SELECT packed.limit_id, packed.number, packed.task
FROM tidegate.leases l
CROSS JOIN LATERAL unnest(l.limits, l.numbers, l.tasks[1:cardinality(l.limits)])
     AS packed (limit_id, number, task);

CREATE OR REPLACE VIEW tidegate.attempts AS
SELECT task, token, gated, cancel, started_at FROM tidegate.running
UNION ALL
SELECT packed.task, l.token, packed.limit_id IS NOT NULL, false, l.started_at
FROM tidegate.leases l
CROSS JOIN LATERAL unnest(l.tasks, l.limits) AS packed (task, limit_id);

-- Whether slots may change hands without the lock of the limit's row: nobody is set aside who might
-- come back, and no number is held that the capacity has not.
ALTER TABLE tidegate.limits ADD COLUMN calm boolean NOT NULL DEFAULT false;

-- Whether a task in line needs one slot of this limit and nothing else. Nobody passes one that needs
-- more or collects its slots, so while such a task waits its limit is locked as ever.
ALTER TABLE tidegate.line ADD COLUMN plain boolean NOT NULL DEFAULT false;
CREATE INDEX line_not_plain ON tidegate.line (limit_id) WHERE NOT plain;

-- What happened at a limit without its lock also counts the slots that were given back and the tasks
-- that left its line. A connection counts in a row of its own, so nobody waits for another.
ALTER TABLE tidegate.passes
    ADD COLUMN freed bigint NOT NULL DEFAULT 0,
    ADD COLUMN taken bigint NOT NULL DEFAULT 0,
    ADD COLUMN backend integer;
ALTER TABLE tidegate.passes SET (fillfactor = 50);
