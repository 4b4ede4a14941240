SELECT nextval('tidegate.places') AS place FROM generate_series(1, $1::bigint)
