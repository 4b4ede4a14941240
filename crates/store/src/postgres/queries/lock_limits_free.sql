-- Those that nobody holds, locked: a claim tidies up what it can and waits for nobody.
SELECT id FROM tidegate.limits WHERE id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED
