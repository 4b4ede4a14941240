release command
