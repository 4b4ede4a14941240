-- The same for those nobody holds: a claim tidies up what it can and waits for nobody.
SELECT id, name, capacity, source, base_capacity, base_source, version, since, held, waiting,
       aside, reserver, dirty, share_weight, last_tag, ahead
FROM tidegate.limits WHERE id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED
