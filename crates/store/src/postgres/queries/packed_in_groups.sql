SELECT l.token FROM tidegate.leases l
WHERE EXISTS (SELECT FROM unnest(l.tasks) AS packed (task)
              JOIN tidegate.tasks t ON t.id = packed.task
              WHERE coalesce(t.group_name, t.kind) = ANY ($1))
