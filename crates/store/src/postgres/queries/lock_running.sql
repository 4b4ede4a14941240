SELECT task, token, gated, cancel, started_at FROM tidegate.running
WHERE task = ANY ($1) ORDER BY task FOR UPDATE
