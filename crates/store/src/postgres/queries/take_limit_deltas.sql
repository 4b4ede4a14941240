-- Takes off what happened at limits without their lock, now that this transaction has it.
DELETE FROM tidegate.limit_deltas WHERE limit_id = ANY ($1)
RETURNING limit_id, claimed_tasks, freed_slots, dequeued, started_at,
          needs_drain OR recheck_at IS NOT NULL AS needs_drain
