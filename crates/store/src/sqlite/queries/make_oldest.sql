-- The version that a program must know to work with the schema; null is the version itself.
alter table migration add column oldest integer;
