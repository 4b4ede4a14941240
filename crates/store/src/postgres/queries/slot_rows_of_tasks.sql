-- The slots of ready tasks ($1). No lease lists them: the slots of a task that does not run are rows.
SELECT task, limit_id, number FROM tidegate.slots WHERE task = ANY ($1)
