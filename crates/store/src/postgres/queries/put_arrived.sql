INSERT INTO tidegate.arrived (task) SELECT unnest($1::bigint[]) ON CONFLICT DO NOTHING
