-- Only heads of the index are read.
with recursive jobs (job) as (
    select min(job) from arrived where job is not null
    union all
    select (select min(arrived.job) from arrived where arrived.job > jobs.job)
    from jobs where jobs.job is not null
)
select job from jobs where job is not null limit ?1
