select progress_percent, progress_message from running where token = ?1 and task = ?2
