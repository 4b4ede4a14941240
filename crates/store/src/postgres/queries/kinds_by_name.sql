SELECT * FROM tidegate.kinds WHERE name = ANY ($1)
