SELECT ARRAY (SELECT task FROM ending) AS tasks,
       set_config('tidegate.has_exits',
                  ((SELECT count(*) FROM ending) < cardinality($1))::text, true)
