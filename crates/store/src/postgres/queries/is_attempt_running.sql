SELECT EXISTS (SELECT FROM tidegate.running_attempts WHERE task = $1 AND token = $2) AS runs
