SELECT * FROM tidegate.waiters
