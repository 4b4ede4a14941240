UPDATE tidegate.running SET gated = true WHERE task = ANY ($1)
