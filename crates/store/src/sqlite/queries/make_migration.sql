create table migration (
    version integer primary key,
    name text not null,
    checksum text not null,
    applied_at integer not null
) strict;
