SELECT nextval('tidegate.tokens') AS token
