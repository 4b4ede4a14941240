SELECT task FROM tidegate.holdings WHERE limit_id = $1 AND number = $2
