UPDATE tidegate.limits l
SET capacity = n.capacity, source = n.source, base_capacity = n.base_capacity,
    base_source = n.base_source, version = n.version, waiting = n.waiting,
    aside = n.aside, reserver = n.reserver, dirty = n.dirty, last_tag = n.last_tag,
    ahead = n.ahead, window_full = n.window_full, refused = n.refused, calm = n.calm
FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::int[], $6::bigint[],
            $7::bigint[], $8::bigint[], $9::bigint[], $10::boolean[],
            $11::bigint[], $12::bigint[], $13::boolean[], $14::bigint[], $15::boolean[])
     AS n (id, capacity, source, base_capacity, base_source, version, waiting, aside,
           reserver, dirty, last_tag, ahead, window_full, refused, calm)
CROSS JOIN LATERAL (SELECT ctid FROM tidegate.limits WHERE id = n.id OFFSET 0) AS row
WHERE l.ctid = row.ctid
