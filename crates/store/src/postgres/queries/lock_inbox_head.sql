-- For the gatekeeper. Waits only for a cancel of the same task: an arrival that is passed over would
-- lose its place in its workflow.
SELECT task FROM tidegate.inbox
WHERE (SELECT current_setting('tidegate.admission_time', true)) <> ''
ORDER BY task LIMIT 1000 FOR UPDATE
