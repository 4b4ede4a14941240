UPDATE tidegate.workers SET schema_version = $2 WHERE id = $1
