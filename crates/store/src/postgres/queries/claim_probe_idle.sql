-- For a worker that found nothing the last time and has heard of nothing since: whether there is
-- something all the same.
SELECT seen.*, EXISTS (
           SELECT FROM unnest(seen.open) AS open (id) CROSS JOIN LATERAL (
               SELECT FROM tidegate.ready WHERE lane = open.id LIMIT 1
           ) AS first
       ) AS has_ready
FROM seen
