SELECT task FROM tidegate.held_slots WHERE limit_id = $1 AND number = $2
