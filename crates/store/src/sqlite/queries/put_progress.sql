update running set progress_percent = ?3, progress_message = ?4 where token = ?1 and task = ?2
