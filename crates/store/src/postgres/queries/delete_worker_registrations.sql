DELETE FROM tidegate.registrations WHERE worker = $1
