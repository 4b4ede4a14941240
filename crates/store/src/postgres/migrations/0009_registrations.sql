-- What live workers say of groups: the capacity a worker brings, or NULL where it registers the kind
-- and brings none. The latest of those that bring one counts.
CREATE TABLE tidegate.registrations (
    worker     text COLLATE "C" NOT NULL,
    group_name text COLLATE "C" NOT NULL,
    -- Given under the lock of the group's limit, so the numbers follow its order.
    number     bigint GENERATED ALWAYS AS IDENTITY,
    capacity   bigint,
    PRIMARY KEY (worker, group_name)
);
CREATE INDEX registrations_group ON tidegate.registrations (group_name, number);

-- When a worker last registered a kind that nobody else made known; NULL where somebody did.
ALTER TABLE tidegate.kinds ADD COLUMN seen_at bigint;

-- The version of the schema that the worker's program knows.
ALTER TABLE tidegate.workers ADD COLUMN schema_version bigint;
