SELECT task, run_at FROM tidegate.scheduled
