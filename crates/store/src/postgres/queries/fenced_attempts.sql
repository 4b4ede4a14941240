SELECT token, task FROM tidegate.fenced_attempts WHERE token = ANY ($1)
