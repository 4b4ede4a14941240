SELECT task, run_at FROM tidegate.scheduled WHERE task = ANY ($1) ORDER BY task FOR UPDATE
