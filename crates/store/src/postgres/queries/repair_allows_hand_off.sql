-- Whoever locks a limit next says again whether it is calm.
UPDATE tidegate.limits SET calm = false WHERE calm
