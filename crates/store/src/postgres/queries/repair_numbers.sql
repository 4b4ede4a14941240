SELECT setval('tidegate.tokens', greatest($1, 1)), setval('tidegate.places', greatest($2, 1))
