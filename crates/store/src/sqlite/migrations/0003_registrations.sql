-- What live workers say of groups: the capacity a worker brings, or null where it registers the kind
-- and brings none. The latest of those that bring one counts.
create table registration (
    number integer primary key,
    worker text not null,
    group_name text not null,
    capacity integer,
    unique (worker, group_name)
) strict;

create index registration_group on registration (group_name, number);

-- When a worker last registered a kind that nobody else made known; null where somebody did.
alter table kind add column seen_at integer;

-- The version of the schema that the worker's program knows.
alter table worker add column schema_version integer;
