-- The claim in the same transaction waits for what is not ended, here or before.
SELECT attempts AS tasks, set_config('tidegate.has_exits', (
           cardinality(attempts) < cardinality($1)
           OR coalesce(current_setting('tidegate.has_exits', true), '') = 'true')::text, true)
FROM ending
