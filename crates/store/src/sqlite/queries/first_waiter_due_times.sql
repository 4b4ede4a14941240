-- One look into the index for each line, however long it is.
select id, (
    select due_at from waiters where limit_id = limits.id order by wait_reason, rank, tag, admission_seq limit 1
)
from limits where waiting > 0 and name not like 'workflow:%'
