select notifications from counters where id = 1
