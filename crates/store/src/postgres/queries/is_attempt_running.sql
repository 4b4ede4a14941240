SELECT EXISTS (SELECT FROM tidegate.attempts WHERE task = $1 AND token = $2) AS runs
