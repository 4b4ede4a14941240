SELECT task, token, holds_slots, cancel_requested, started_at FROM tidegate.running
WHERE task = ANY (ARRAY (SELECT task FROM tidegate.running WHERE token = ANY ($1)))
  AND token = ANY ($1)
ORDER BY task FOR UPDATE
