select task, token, holds_slots from running
