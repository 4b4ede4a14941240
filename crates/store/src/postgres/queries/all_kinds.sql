SELECT * FROM tidegate.kinds ORDER BY name
