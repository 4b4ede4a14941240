DELETE FROM tidegate.leases WHERE token = ANY ($1) AND tasks = '{}'
