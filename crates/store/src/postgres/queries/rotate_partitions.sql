-- Makes the partitions of days to come, and drops those whose day has come.
SELECT tidegate.rotate_finished_partitions($1) AS tasks
