-- What runs and holds no slots needs no row of its own: its lease lists it. Whoever has to know
-- more of it than that it runs and ends well unpacks the lease first, into rows of `running`.
ALTER TABLE tidegate.leases
    ADD COLUMN started_at bigint NOT NULL DEFAULT 0,
    ADD COLUMN tasks bigint[] NOT NULL DEFAULT '{}';
ALTER TABLE tidegate.leases SET (fillfactor = 50);

CREATE VIEW tidegate.attempts AS
SELECT task, token, gated, cancel, started_at FROM tidegate.running
UNION ALL
SELECT packed.task, l.token, false, false, l.started_at
FROM tidegate.leases l CROSS JOIN LATERAL unnest(l.tasks) AS packed (task);

CREATE OR REPLACE VIEW tidegate.states AS
SELECT t.id, t.job,
       CASE WHEN t.state IS NOT NULL THEN t.state
            WHEN s.task IS NOT NULL THEN 0
            WHEN l.task IS NOT NULL THEN 2
            WHEN u.task IS NOT NULL THEN 3
            ELSE 1 END AS state
FROM tidegate.tasks t
LEFT JOIN tidegate.scheduled s ON s.task = t.id
LEFT JOIN tidegate.line l ON l.task = t.id
LEFT JOIN tidegate.attempts u ON u.task = t.id;
