SELECT seen.* FROM seen
