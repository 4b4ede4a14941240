-- Those whose day had no partition when they ended.
DELETE FROM tidegate.ended_stray WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM tidegate.ended_stray WHERE remove_day <= $1
    ORDER BY remove_day LIMIT 1000 FOR UPDATE SKIP LOCKED))
