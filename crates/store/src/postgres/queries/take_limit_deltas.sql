-- Takes off what happened at limits without their lock, now that this transaction has it.
DELETE FROM tidegate.passes WHERE limit_id = ANY ($1)
RETURNING limit_id, tasks, freed, taken, started_at, urgent OR look_at IS NOT NULL AS urgent
