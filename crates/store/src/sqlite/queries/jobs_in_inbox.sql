-- Only heads of the index are read.
with recursive jobs (job) as (
    select min(job) from inbox where job is not null
    union all
    select (select min(inbox.job) from inbox where inbox.job > jobs.job)
    from jobs where jobs.job is not null
)
select job from jobs where job is not null limit ?1
