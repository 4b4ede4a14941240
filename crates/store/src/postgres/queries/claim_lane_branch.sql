(
    SELECT r.ctid AS row, r.rank, r.tag, r.task FROM tidegate.ready r
    WHERE r.lane = lane.ids[{n}]
      AND (r.rank, r.tag, r.task) >= (lane.ranks[{n}], lane.tags[{n}], lane.tasks[{n}])
    ORDER BY r.rank, r.tag, r.task
)
