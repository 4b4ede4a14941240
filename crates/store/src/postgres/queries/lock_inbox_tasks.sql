SELECT task FROM tidegate.arrived WHERE task = ANY ($1) ORDER BY task FOR UPDATE
