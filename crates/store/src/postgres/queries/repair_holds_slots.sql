UPDATE tidegate.running SET holds_slots = true WHERE task = ANY ($1)
