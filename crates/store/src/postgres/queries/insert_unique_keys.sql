-- Only a submit of the same key waits here. Ordered, so that two submits do not wait for each
-- other in a circle.
INSERT INTO tidegate.unique_keys (key)
SELECT key FROM unnest($1::text[]) AS asked (key) ORDER BY key COLLATE "C"
ON CONFLICT (key) DO NOTHING
RETURNING key
