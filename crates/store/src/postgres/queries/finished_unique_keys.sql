-- The unique keys of finished tasks that may be retried, without a lock. State $2 is not retried.
SELECT id, unique_key FROM tidegate.finished
WHERE id = ANY ($1) AND unique_key IS NOT NULL AND state <> $2
