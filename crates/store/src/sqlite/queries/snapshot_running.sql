select task, token, gated from running
