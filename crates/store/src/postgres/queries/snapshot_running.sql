SELECT task, token, gated, cancel, started_at FROM tidegate.attempts
