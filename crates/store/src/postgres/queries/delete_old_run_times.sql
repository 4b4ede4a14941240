DELETE FROM tidegate.run_times WHERE updated_at < $1
