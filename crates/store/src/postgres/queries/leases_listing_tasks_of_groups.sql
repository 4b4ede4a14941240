SELECT l.token FROM tidegate.leases l
WHERE EXISTS (SELECT FROM unnest(l.tasks) AS packed (task)
              CROSS JOIN LATERAL (
                  SELECT FROM tidegate.tasks t
                  WHERE t.id = packed.task AND coalesce(t.group_name, t.kind) = ANY ($1) OFFSET 0
              ) AS is_meant)
