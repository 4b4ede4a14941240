-- Online: programs of the version before leave the column alone.
-- The job whose share brings a task to the gate; none where it has none or is a step of a workflow.
alter table arrived add column job text;
create index arrived_job on arrived (job, task) where job is not null;
