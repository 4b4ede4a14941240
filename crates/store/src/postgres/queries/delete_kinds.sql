-- One that was registered meanwhile stays.
DELETE FROM tidegate.kinds WHERE name = ANY ($1) AND registered_at < $2 RETURNING name
