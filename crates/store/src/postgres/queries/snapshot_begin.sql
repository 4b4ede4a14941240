-- One committed state, whatever others do meanwhile.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY
