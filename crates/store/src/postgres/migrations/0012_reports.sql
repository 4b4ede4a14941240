-- Online: programs of the version before leave the column alone.
-- What a worker last said of itself.
ALTER TABLE tidegate.workers ADD COLUMN report jsonb;
