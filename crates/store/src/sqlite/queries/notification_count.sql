select news from meta where id = 1
