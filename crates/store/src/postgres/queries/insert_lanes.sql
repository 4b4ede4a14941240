-- `NOT EXISTS` saves the numbers that a conflict would use up.
INSERT INTO tidegate.lanes (queue, kind)
SELECT queue, kind FROM unnest($1::text[], $2::text[]) AS lane (queue, kind)
WHERE NOT EXISTS (SELECT FROM tidegate.lanes l WHERE l.queue = lane.queue AND l.kind = lane.kind)
ON CONFLICT (queue, kind) DO NOTHING
