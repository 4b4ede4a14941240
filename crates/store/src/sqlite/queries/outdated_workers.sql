-- Live workers that know less than a version. One that never said what it knows is old.
select id from workers where alive_until > ?1 and coalesce(schema_version, 0) < ?2 order by id
