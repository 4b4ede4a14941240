SELECT token, task FROM tidegate.fenced WHERE token = ANY ($1)
