-- Rows for every table, as a busy store has them: tasks that wait and run, some limits, some workers.
INSERT INTO tidegate.kinds (name, queue, max_attempts, backoff_base_ms, backoff_cap_ms, max_crashes)
    SELECT 'kind' || n, 'queue' || n, 1, 1000, 1000, 3 FROM generate_series(1, 50) n;
INSERT INTO tidegate.lanes (queue, kind) SELECT 'queue' || n, 'kind' || n FROM generate_series(1, 50) n;
INSERT INTO tidegate.paused_queues SELECT 'paused' || n, 0 FROM generate_series(1, 20) n;
INSERT INTO tidegate.workers (id, alive_until, heartbeat_expires_at, heartbeat_lease_ms)
    SELECT 'worker' || n, n, n, 1 FROM generate_series(1, 200) n;
INSERT INTO tidegate.worker_lanes
    SELECT 'worker' || w, l, w FROM generate_series(1, 200) w CROSS JOIN generate_series(1, 10) l;
INSERT INTO tidegate.registrations (worker, group_name, capacity)
    SELECT 'worker' || w, 'kind' || k, 10
    FROM generate_series(1, 200) w CROSS JOIN generate_series(1, 10) k;
INSERT INTO tidegate.run_times SELECT 'kind' || n, 1, 1, n FROM generate_series(1, 50) n;
INSERT INTO tidegate.limits (name, capacity, source, version, applies_from_version, waiting, skipped, dirty,
                             last_tag, in_window, share_weight)
    SELECT CASE WHEN n <= 50 THEN 'group:kind' || n ELSE 'job:job' || n END, 10, n % 2, 1, 1, 0, 0, false,
           0, 0, CASE WHEN n > 50 THEN 1 END
    FROM generate_series(1, 2000) n;
INSERT INTO tidegate.limit_deltas (limit_id, claimed_tasks, needs_drain, backend_pid)
    SELECT n, 0, false, 1 FROM generate_series(1, 500) n;
INSERT INTO tidegate.slot_groups SELECT l, g, 1 FROM generate_series(1, 500) l, generate_series(0, 9) g;
INSERT INTO tidegate.tasks (id, lane, kind, queue, group_name, job, workflow, weight, priority, due_at,
                            created_at, payload)
    SELECT n, n % 50 + 1, 'kind' || n % 50 + 1, 'queue', CASE WHEN n % 3 = 0 THEN 'group' || n % 50 END,
           CASE WHEN n % 5 = 0 THEN 'job' || n % 1000 END,
           CASE WHEN n % 7 = 0 THEN 'workflow' || n END, 1, 0, 0, 0, ''
    FROM generate_series(1, 20000) n;
INSERT INTO tidegate.ready SELECT n, n % 50 + 1, n / 100, 0, 0, n % 4 = 0, n FROM generate_series(1, 5000) n;
INSERT INTO tidegate.waiters
    SELECT n, n % 50 + 1, CASE WHEN n % 10 = 0 THEN 4 ELSE 1 END, n / 100, 0, n, n % 50 + 1, 0, false, 0,
           n % 3 <> 0
    FROM generate_series(5001, 10000) n;
INSERT INTO tidegate.scheduled SELECT n, n FROM generate_series(10001, 12000) n;
INSERT INTO tidegate.inbox SELECT n, CASE WHEN n % 2 = 0 THEN 'job' || n % 100 END
    FROM generate_series(12001, 14000) n;
INSERT INTO tidegate.leases (token, worker, expires_at, tasks, limits, numbers)
    SELECT n, 'worker' || n % 200, n, ARRAY[n * 2 + 14000, n * 2 + 14001], ARRAY[n % 50 + 1], ARRAY[n]
    FROM generate_series(1, 1000) n;
INSERT INTO tidegate.running SELECT n, n % 500, n % 2 = 0, false, 0 FROM generate_series(17001, 20000) n;
INSERT INTO tidegate.slots SELECT n % 50 + 1, n, n FROM generate_series(17001, 20000) n;
INSERT INTO tidegate.fenced_attempts SELECT n % 100, n FROM generate_series(1, 2000) n;
INSERT INTO tidegate.unique_keys SELECT 'key' || n, n FROM generate_series(1, 5000) n;
INSERT INTO tidegate.finished (id, lane, kind, queue, job, workflow, weight, priority, attempts_used, crashes, due_at,
                            created_at, payload, state, finished_at, remove_day)
    SELECT n, 1, 'kind1', 'queue', 'job' || n % 100, 'workflow' || n, 1, 0, 1, 0, 0, 0, '', 4, 0,
           CASE WHEN n % 10 = 0 THEN 1 ELSE 2147483647 END
    FROM generate_series(30001, 40000) n;
