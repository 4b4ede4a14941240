SELECT n.queue AS name, place.state, count(*) AS tasks
FROM (
    SELECT t.lane, 0 AS state FROM tidegate.scheduled s JOIN tidegate.tasks t ON t.id = s.task
    UNION ALL SELECT t.lane, 1 FROM tidegate.inbox a JOIN tidegate.tasks t ON t.id = a.task
    UNION ALL SELECT lane, 1 FROM tidegate.ready
    UNION ALL SELECT lane, 2 FROM tidegate.waiters
    UNION ALL SELECT t.lane, 3 FROM tidegate.running_attempts u JOIN tidegate.tasks t ON t.id = u.task
) AS place
JOIN tidegate.lanes n ON n.id = place.lane
GROUP BY n.queue, place.state
