UPDATE tidegate.counters SET limits_version = $1
