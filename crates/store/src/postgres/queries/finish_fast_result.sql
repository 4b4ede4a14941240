-- The claim in the same transaction waits for what is not ended, here or before.
SELECT attempts AS tasks, set_config('tidegate.skip_claim', (
           cardinality(attempts) < cardinality($1)
           OR coalesce(current_setting('tidegate.skip_claim', true), '') = 'true')::text, true)
FROM ending
