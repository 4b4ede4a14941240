-- `oldest` is the version that a program must know to work with the schema; null is the version itself.
create table migration (
    version integer primary key,
    name text not null,
    checksum text not null,
    applied_at integer not null,
    oldest integer
) strict;
