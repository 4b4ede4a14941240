-- Removes leases without attempts. Under the lock of these leases, so that of two who end the last two attempts of one the second
-- sees that the first is gone.
DELETE FROM tidegate.leases l
WHERE token = ANY ($1) AND tasks = '{}'
  AND (SELECT true FROM tidegate.running r WHERE r.token = l.token LIMIT 1) IS NULL
