select task, token from running
