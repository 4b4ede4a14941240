-- Jobs whose window was full when their limit was last locked, and of which tasks were claimed
-- since: the next may pass. Whoever fills a window and whoever claims out of it both look after
-- their commit, so that at least one of them sees what the other did.
SELECT id FROM tidegate.limits l
-- A LIMIT, so that it does not become a join.
CROSS JOIN LATERAL (SELECT FROM tidegate.limit_deltas WHERE limit_id = l.id LIMIT 1) AS claimed
WHERE id = ANY ($1) AND window_full
ORDER BY id
