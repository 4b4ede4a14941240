select task from arrived
