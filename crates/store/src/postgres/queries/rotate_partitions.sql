-- Makes the partitions of days to come, and drops those whose day has come.
SELECT tidegate.turn_days($1) AS tasks
