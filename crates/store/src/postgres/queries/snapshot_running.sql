SELECT task, token, holds_slots, cancel_requested, started_at FROM tidegate.running_attempts
