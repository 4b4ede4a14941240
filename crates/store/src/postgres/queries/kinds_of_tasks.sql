-- The kinds of some tasks.
SELECT * FROM tidegate.kinds WHERE name = ANY (ARRAY (
    SELECT kind FROM tidegate.tasks WHERE id = ANY ($1)))
