-- Jobs whose window was full when their limit was last locked, and of which tasks were claimed
-- since: the next may pass. Whoever fills a window and whoever claims out of it both look after
-- their commit, so that at least one of them sees what the other did.
SELECT id FROM tidegate.limits l
WHERE id = ANY ($1) AND window_full
  AND EXISTS (SELECT FROM tidegate.passes p WHERE p.limit_id = l.id)
ORDER BY id
