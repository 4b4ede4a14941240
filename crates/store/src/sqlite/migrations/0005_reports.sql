-- Online: programs of the version before leave the column alone.
-- What a worker last said of itself, as JSON.
alter table worker add column report text;
