SELECT EXISTS (SELECT FROM tidegate.attempts WHERE task = $1) AS is_running
