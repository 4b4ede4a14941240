delete from ready where ?1 > 0 and (rank, tag, task) <= (?2, ?3, ?4)
