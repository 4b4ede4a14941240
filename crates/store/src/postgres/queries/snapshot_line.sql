SELECT * FROM tidegate.line
