SELECT task FROM tidegate.inbox WHERE task = ANY ($1) ORDER BY task FOR UPDATE
