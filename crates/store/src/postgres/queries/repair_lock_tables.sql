-- Nobody writes, or locks a row to write, until the repair is done. Readers are let be.
LOCK TABLE tidegate.tasks, tidegate.unique_keys, tidegate.scheduled, tidegate.arrived,
           tidegate.ready, tidegate.running, tidegate.line, tidegate.limits, tidegate.passes,
           tidegate.slots, tidegate.slot_groups, tidegate.leases, tidegate.counters IN EXCLUSIVE MODE
