-- Sent when the transaction commits; equal notices of one transaction are sent once.
SELECT pg_notify('tidegate', '')
