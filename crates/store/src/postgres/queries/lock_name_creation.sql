-- New kinds, lanes and jobs are made by one submit at a time: two that name the same ones in
-- another order would wait for each other in a circle.
SELECT pg_advisory_xact_lock(7453126, 3)
