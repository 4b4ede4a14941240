SELECT payload, result FROM tidegate.tasks WHERE id = $1
