-- `min_program_version` is the version that a program must know to work with the schema; null is the version itself.
create table migrations (
    version integer primary key,
    name text not null,
    checksum text not null,
    applied_at integer not null,
    min_program_version integer
) strict;
