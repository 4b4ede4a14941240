SELECT EXISTS (SELECT FROM tidegate.running_attempts WHERE task = $1) AS is_running
