-- One look into the index for each line, however long it is.
select id, (
    select since from line where limit_id = limits.id order by class, rank, tag, place limit 1
)
from limits where waiting > 0 and name not like 'workflow:%'
