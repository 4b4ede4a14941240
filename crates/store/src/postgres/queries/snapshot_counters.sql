SELECT virtual_time, limits_version,
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tidegate.tokens) AS last_token,
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tidegate.admission_seqs) AS last_admission_seq,
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tidegate.task_ids) AS last_task,
       greatest((SELECT max(id) FROM tidegate.tasks), (SELECT max(id) FROM tidegate.finished), 0)
           AS highest_task,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
FROM tidegate.counters
