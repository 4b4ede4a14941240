-- Those whose day had no partition when they ended.
DELETE FROM tidegate.finished_default WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM tidegate.finished_default WHERE remove_day <= $1
    ORDER BY remove_day LIMIT 1000 FOR UPDATE SKIP LOCKED))
