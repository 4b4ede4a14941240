SELECT task, token, gated, cancel, started_at FROM tidegate.running
WHERE token = ANY ($1) AND cancel
