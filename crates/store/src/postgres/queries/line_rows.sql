-- Where some tasks stand in line. Final for those whose line's limit is locked.
SELECT * FROM tidegate.line WHERE task = ANY ($1)
