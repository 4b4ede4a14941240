insert or ignore into worker_lane (lane, worker) values (?1, ?2)
