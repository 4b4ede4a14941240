-- Which slots of some limits are taken.
SELECT limit_id, number, capacity, taken FROM tidegate.slot_groups WHERE limit_id = ANY ($1)
