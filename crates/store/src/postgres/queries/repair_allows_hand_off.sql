-- Whoever locks a limit next says again whether it allows hand-offs.
UPDATE tidegate.limits SET allows_hand_off = false WHERE allows_hand_off
