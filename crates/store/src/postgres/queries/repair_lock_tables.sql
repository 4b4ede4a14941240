-- Nobody writes, or locks a row to write, until the repair is done. Readers are let be.
LOCK TABLE tidegate.tasks, tidegate.unique_keys, tidegate.scheduled, tidegate.inbox,
           tidegate.ready, tidegate.running, tidegate.waiters, tidegate.limits, tidegate.limit_deltas,
           tidegate.slots, tidegate.slot_groups, tidegate.leases, tidegate.counters IN EXCLUSIVE MODE
