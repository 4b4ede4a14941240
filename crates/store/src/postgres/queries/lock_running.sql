SELECT task, token, holds_slots, cancel_requested, started_at FROM tidegate.running
WHERE task = ANY ($1) ORDER BY task FOR UPDATE
