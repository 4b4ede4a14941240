select task from inbox
