SELECT task FROM tidegate.slots WHERE limit_id = $1 AND number = $2
