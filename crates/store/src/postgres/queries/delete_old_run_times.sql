DELETE FROM tidegate.paces WHERE heard_at < $1
