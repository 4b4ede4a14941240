-- Of some ready tasks, those that a limit still applies to which began after they were made ready: others may
-- have sent them back meanwhile, and some of them are ready again.
SELECT r.task, r.lane, r.rank, r.tag, r.limits_version, r.holds_slots, r.ready_at
FROM tidegate.ready r
CROSS JOIN LATERAL (SELECT * FROM tidegate.tasks WHERE id = r.task OFFSET 0) AS t
WHERE r.task = ANY ($1)
  AND EXISTS (
      SELECT FROM tidegate.limits l
      WHERE l.name IN ('group:' || coalesce(t.group_name, t.kind), 'job:' || t.job,
                       'workflow:' || t.workflow)
        AND l.applies_from_version > r.limits_version
      OFFSET 0)
ORDER BY r.task FOR UPDATE OF r
