SELECT setval('tidegate.tokens', greatest($1::bigint, 1)), setval('tidegate.admission_seqs', greatest($2::bigint, 1))
