SELECT task, token, holds_slots, cancel_requested, started_at FROM tidegate.running
WHERE token = ANY ($1) AND cancel_requested
